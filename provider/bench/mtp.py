"""`darkbloom-py bench mtp`: what a model's prediction head gains on this machine, and where the time of a round goes.

In every round a server with drafting and one without (DARKBLOOM_MTP=0) are started in turn, each alone, and asked the
same counting questions at 1, 4 and 8 streams; every other round begins with the other one. Ratios are of one round,
whose disturbances both share, and the medians of the rounds are what is reported.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from provider.api.conversation import turns_of
from provider.api.prompt import chat_prompt
from provider.bench import client
from provider.bench.client import BenchError, Target
from provider.bench.drafting import Drafting, read_drafting
from provider.bench.load import ClosedLoop, Fixed, Listed, parse_lengths, plan_load
from provider.bench.local_server import local_server
from provider.bench.mtp_gain import Gain, Measured, Side, gains_of
from provider.bench.prompts import PromptStyle
from provider.bench.report import report
from provider.errors import ConfigError
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.models.resolve import resolve_model
from provider.models.tokenizer import ModelTokenizer

GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Counting:
    """Implements PromptStyle: another counting question for every seed, in the model's own chat template. Its answer is
    long, and as easy to foresee as text gets."""

    tokenizer: ModelTokenizer

    def make(self, tokens: int, seed: int) -> list[int]:
        """`tokens` is not looked at: a question is as long as it is."""
        rng = Random(seed)
        first = rng.randint(0, 200)
        question = f"Count from {first} to {first + rng.randint(40, 60)}."
        return chat_tokens(self.tokenizer, question)


def chat_tokens(tokenizer: ModelTokenizer, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    return chat_prompt(tokenizer, turns_of(messages), [], {}, time.time, Random(0)).token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`requests`: of each stream, in each round. They are measured after one more of each that is not."""

    model: Path
    prompts: PromptStyle
    streams: tuple[int, ...]
    requests: int
    output_tokens: int
    rounds: int
    arguments: tuple[str, ...] = ()
    """More options of `local`."""


def mtp(
    model: Annotated[
        str, typer.Option(help="A directory, an id, or darkbloom-demo.", metavar="PATH_OR_ID")
    ] = BUNDLED_MODEL_ID,
    streams: Annotated[str, typer.Option(help="How many at once, one figure for each.", metavar="LIST")] = "1,4,8",
    requests: Annotated[int, typer.Option(help="Of each stream, in each round.", min=1)] = 3,
    output_tokens: Annotated[int, typer.Option(help="Of each answer.", min=2)] = 128,
    rounds: Annotated[int, typer.Option(help="Each measures both servers.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure what drafting with a model's prediction head gains, against the same model without it."""
    found = resolve_model(model)
    plan = Plan(
        model=found.directory,
        prompts=Counting(ModelTokenizer(found.directory)),
        streams=_streams(streams),
        requests=requests,
        output_tokens=output_tokens,
        rounds=rounds,
    )
    gains = gains_of([one for number in range(rounds) for one in measure_round(plan, number, say)])
    if as_json:
        typer.echo(json.dumps(as_object(found.id, plan, gains)))
    else:
        print_gains(found.id, gains)


def measure_round(plan: Plan, number: int, tell: Callable[[str], None]) -> list[Measured]:
    """Both servers in turn. Raises BenchError when one cannot be started or asked, or the model does not draft."""
    sides = (Side.DRAFTING, Side.PLAIN) if number % 2 == 0 else (Side.PLAIN, Side.DRAFTING)
    found = []
    for side in sides:
        tell(f"round {number + 1} of {plan.rounds}: {side}")
        found += measure_side(plan, side, number)
    return found


def measure_side(plan: Plan, side: Side, seed: int) -> list[Measured]:
    most = str(max(plan.streams))
    arguments = ("--model", str(plan.model), "--max-concurrent", most, *plan.arguments)
    with (
        tempfile.TemporaryDirectory() as scratch,
        local_server(arguments, side.environment, Path(scratch)) as url,
    ):
        return asyncio.run(_ask(plan, side, url, seed))


async def _ask(plan: Plan, side: Side, url: str, seed: int) -> list[Measured]:
    async with client.connected(url, api_key=None) as connection:
        target = Target(url, await client.first_model(connection), GREEDY)

        async def drafting() -> Drafting:
            return read_drafting((await connection.get("/props")).json(), target.model)

        async def rate(streams: int, requests: int, number: int) -> float:
            load = plan_load(ClosedLoop(streams), streams * requests, Fixed(1), Fixed(plan.output_tokens), number)
            said = report(await client.run_load(connection, target, load, plan.prompts))
            if said.tokens_per_s is None or said.unanswered or said.rejected:
                raise BenchError(f"not every request was answered: {[*said.unanswered, *said.rejected]}")
            return said.tokens_per_s

        found, first = [], await drafting()
        if side is Side.DRAFTING and not first.active:
            raise BenchError(f"{plan.model} does not draft here: {first.reason}; `darkbloom-py doctor` says more.")
        for streams in plan.streams:
            await rate(streams, 1, -1 - seed)
            before = await drafting()
            tokens_per_s = await rate(streams, plan.requests, seed)
            found.append(Measured(side, streams, tokens_per_s, (await drafting()).since(before)))
        return found


def as_object(model: str, plan: Plan, gains: Sequence[Gain]) -> dict[str, Any]:
    return {
        "model": model,
        "cores": os.cpu_count(),
        "requests": plan.requests,
        "output_tokens": plan.output_tokens,
        "rounds": plan.rounds,
        "streams": [asdict(one) for one in gains],
    }


def print_gains(model: str, gains: Sequence[Gain]) -> None:
    heads = ("streams", "plain", "drafting", "ratio", "rounds", "accepted", "draft", "verify", "rest")
    table = Table(
        *heads, title=f"{model}: tokens/s; ms of a row with drafts", box=None, pad_edge=False, title_justify="left"
    )
    for one in gains:
        table.add_row(
            str(one.streams),
            f"{one.plain_tokens_per_s:.1f}",
            f"{one.drafting_tokens_per_s:.1f}",
            f"{one.ratio:.2f}x",
            " ".join(f"{ratio:.2f}" for ratio in one.ratios),
            " ".join(f"{rate:.2f}" for rate in one.acceptance) or "-",
            *("-" if ms is None else f"{ms:.2f}" for ms in (one.draft_ms, one.verify_ms, one.bookkeeping_ms)),
        )
    Console(soft_wrap=True).print(table)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _streams(text: str) -> tuple[int, ...]:
    match parse_lengths(text):
        case Fixed(count):
            return (count,)
        case Listed(counts):
            return counts
        case _:
            raise ConfigError(f"--streams {text!r}: say one number or a list (1,4,8).")
