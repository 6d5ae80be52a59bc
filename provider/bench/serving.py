"""`darkbloom-py bench serving`: load on any OpenAI-compatible server, and what its clients would have felt."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from provider.bench import client
from provider.bench.client import Target
from provider.bench.load import Arrivals, ClosedLoop, Load, OpenLoop, parse_lengths, plan_load
from provider.bench.plot import load_pyplot, write_plot
from provider.bench.prompts import PromptStyle, TokenIds
from provider.bench.report import Answer, Outcome, Report, Spread, impossible, report

LENGTHS_HELP = "A number, a range (32-512), or a list taken in turn (16,64,1500)."


def serving(
    url: Annotated[str, typer.Option(help="The server, without /v1.")],
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token.")] = None,
    model: Annotated[str | None, typer.Option(help="The first one the server lists, by default.")] = None,
    streams: Annotated[
        int | None, typer.Option(help="Clients that ask again when answered. [default: 8]", min=1)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second, arriving at random, instead.", min=1e-6)
    ] = None,
    requests: Annotated[int, typer.Option(help="How many in all.", min=1)] = 64,
    prompt_tokens: Annotated[str, typer.Option(help=LENGTHS_HELP, metavar="SPEC")] = "32-512",
    output_tokens: Annotated[str, typer.Option(help=LENGTHS_HELP, metavar="SPEC")] = "64",
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for all tokens, past the end of the text.")] = True,
    seed: Annotated[int, typer.Option(help="Of lengths, prompts and arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also write a picture (needs matplotlib).", metavar="FILE.png")
    ] = None,
) -> None:
    """Put load on a server's /v1/completions; print throughput and the percentiles of what a client waits for."""
    load = plan_load(
        _arrivals(streams, rate), requests, parse_lengths(prompt_tokens), parse_lengths(output_tokens), seed
    )
    pyplot = None if plot is None else load_pyplot()
    extra: dict[str, Any] = {"temperature": temperature, **({"ignore_eos": True} if ignore_eos else {})}
    target, style, outcomes = asyncio.run(_measure(url, api_key, model, extra, load))
    result = report(outcomes)
    if plot is not None:
        answers = [one for one in outcomes if isinstance(one, Answer) and impossible(one) is None]
        write_plot(pyplot, answers, f"{target.model}, {_told(load.arrivals)}", plot)
    if as_json:
        typer.echo(json.dumps(_as_object(target, style, load, prompt_tokens, output_tokens, result)))
    else:
        _print(result, f"{target.model} at {target.url}, {_told(load.arrivals)}")
    if not result.answered:
        raise typer.Exit(1)


def _arrivals(streams: int | None, rate: float | None) -> Arrivals:
    if rate is None:
        return ClosedLoop(8 if streams is None else streams)
    if streams is not None:
        raise typer.BadParameter("either streams or a rate: --streams N is a closed loop, --rate R an open one.")
    return OpenLoop(rate)


async def _measure(
    url: str, api_key: str | None, model: str | None, extra: dict[str, Any], load: Load
) -> tuple[Target, PromptStyle, Sequence[Outcome]]:
    async with client.connected(url, api_key) as connection:
        target = Target(url, model or await client.first_model(connection), extra)
        style = await client.prompt_style(connection, target)
        return target, style, await client.run_load(connection, target, load, style)


def _told(arrivals: Arrivals) -> str:
    match arrivals:
        case ClosedLoop(streams):
            return f"{streams} streams" if streams > 1 else "1 stream"
        case OpenLoop(rate_per_s):
            return f"{rate_per_s:g} requests/s"


def _as_object(
    target: Target, style: PromptStyle, load: Load, prompt_tokens: str, output_tokens: str, result: Report
) -> dict[str, Any]:
    return {
        "url": target.url,
        "model": target.model,
        "load": {
            **asdict(load.arrivals),
            "requests": len(load.requests),
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "prompts": "token ids" if isinstance(style, TokenIds) else "text",
            "seed": load.seed,
            **target.extra,
        },
        **asdict(result),
    }


def _print(result: Report, title: str) -> None:
    table = Table("", "mean", "p50", "p90", "p99", title=title, box=None, pad_edge=False, title_justify="left")
    for name, spread in (
        ("time to first token", result.ttft_ms),
        ("between two pieces", result.inter_token_ms),
        ("per token of an answer", result.time_per_output_token_ms),
        ("whole answer", result.latency_ms),
    ):
        table.add_row(f"{name} (ms)", *_cells(spread))
    console = Console(soft_wrap=True)
    console.print(table)
    if result.tokens_per_s is not None:
        console.print(f"{result.tokens_per_s:.1f} tokens/s in all, {result.requests_per_s:.2f} answers/s")
    console.print(f"{result.answered} of {result.requests} answered, {result.output_tokens} tokens")
    if result.stopped_early:
        console.print(f"{result.stopped_early} ended before the tokens they were asked for")
    for what, rows in (("not answered", result.unanswered), ("left out", result.rejected)):
        for row in rows:
            console.print(f"request {row.number} {what}: {row.reason}", style="red", markup=False)


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * 4
    return [f"{value:.1f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99)]
