"""`darkbloom-py bench fleet`: what a coordinator costs, measured on processes of this installation.

A coordinator with its embedded Postgres has one CPU core for itself where there are two; the simulated providers and
the clients share the others. CPU times are the coordinator process's own, Postgres not counted.

idle     providers that do nothing but beat
relay    streams of a fixed pace: CPU per chunk, every token counted, and whether chunks come ever later
first    a rate of requests, to a provider that needs no time directly and through the coordinator to such providers:
         what that adds to the first token; and to a server whose answers are ready, the least that asking takes
"""

import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import typer

from provider.backends.sim_timing import DEVICE_VARIABLE, DEVICES
from provider.bench import client
from provider.bench.client import BenchError, Target
from provider.bench.load import Arrivals, ClosedLoop, Fixed, OpenLoop, plan_load
from provider.bench.local_server import local_server, ready_server
from provider.bench.own_fleet import Coordinator, own_coordinator, own_fleet
from provider.bench.prompts import TokenIds
from provider.bench.report import Answer, Outcome
from provider.models.bundled import BUNDLED_MODEL_ID

Part = Literal["idle", "relay", "first"]
PARTS: tuple[Part, ...] = ("idle", "relay", "first")
PROMPT_TOKENS = 16
FIRST_TOKENS = 4
WARMING = 100


@dataclass(frozen=True, slots=True)
class Idle:
    providers: int
    seconds: float
    cpu_share: float
    """Of one core."""
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Relay:
    """`lateness`: the mean gap between two pieces in the second half of the streams, over that of the first half."""

    streams: int
    chunks: int
    chunks_per_s: float
    cpu_us_per_chunk: float
    tokens_missing: int
    unanswered: int
    lateness: float


@dataclass(frozen=True, slots=True)
class First:
    rate_per_s: float
    requests: int
    ready_p50_ms: float
    ready_p99_ms: float
    direct_p50_ms: float
    direct_p99_ms: float
    through_p50_ms: float
    through_p99_ms: float
    added_p50_ms: float
    added_p99_ms: float
    cpu_ms_per_request: float
    unanswered: int


def fleet(
    part: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PARTS)}; default: all.")] = None,
    providers: Annotated[int, typer.Option(help="That are connected while nothing is asked.", min=1)] = 2000,
    seconds: Annotated[float, typer.Option(help="For so long.", min=1)] = 30.0,
    streams: Annotated[int, typer.Option(help="Streams of 20 tokens a second.", min=1)] = 100,
    tokens: Annotated[int, typer.Option(help="Of each stream.", min=8)] = 200,
    rate: Annotated[float, typer.Option(help="Requests per second.", min=0.1)] = 100.0,
    requests: Annotated[int, typer.Option(help="How many.", min=10)] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure what a coordinator adds and what it takes, with simulated providers."""
    told = part or list(PARTS)
    unknown = set(told) - set(PARTS)
    if unknown:
        raise typer.BadParameter(f"--part {', '.join(sorted(unknown))}: expected {', '.join(PARTS)}.")
    found: dict[str, Any] = {"cores": os.cpu_count(), "pinned": _pinned()}
    if "idle" in told:
        with _coordinator() as one, own_fleet(one, providers, "instant"):
            found["idle"] = asdict(_idle(one, providers, seconds))
    if "relay" in told:
        with _coordinator() as one, own_fleet(one, -(-streams // 8), "paced"):
            found["relay"] = asdict(asyncio.run(_relay(one, streams, tokens)))
    if "first" in told:
        found["first"] = asdict(_first(rate, requests))
    typer.echo(json.dumps(found) if as_json else _told(found))


def _pinned() -> bool:
    return hasattr(psutil.Process, "cpu_affinity") and (os.cpu_count() or 1) > 1


@contextlib.contextmanager
def _coordinator() -> Iterator[Coordinator]:
    with tempfile.TemporaryDirectory() as directory, own_coordinator(Path(directory)) as one:
        _pin(one.process.pid)
        yield one


def _pin(pid: int) -> None:
    """The coordinator to the first core; this process, and what it starts from now on, to the others."""
    if _pinned():
        first, *others = range(os.cpu_count() or 1)
        psutil.Process(pid).cpu_affinity([first])
        psutil.Process().cpu_affinity(others)


def _idle(coordinator: Coordinator, providers: int, seconds: float) -> Idle:
    began_s, began_cpu_s = time.monotonic(), coordinator.cpu_s()
    time.sleep(seconds)
    took_s, cpu_s = time.monotonic() - began_s, coordinator.cpu_s() - began_cpu_s
    if coordinator.alive() < providers:
        raise BenchError("providers were lost meanwhile")
    return Idle(providers, round(took_s, 1), round(cpu_s / took_s, 3), coordinator.process.memory_info().rss)


async def _relay(coordinator: Coordinator, streams: int, tokens: int) -> Relay:
    await _ask(coordinator.url, coordinator.api_key, ClosedLoop(8), 16, 4)
    began_s, began_cpu_s = time.monotonic(), coordinator.cpu_s()
    outcomes = await _ask(coordinator.url, coordinator.api_key, ClosedLoop(streams), streams, tokens)
    took_s, cpu_s = time.monotonic() - began_s, coordinator.cpu_s() - began_cpu_s
    answers = [one for one in outcomes if isinstance(one, Answer)]
    chunks = sum(one.output_tokens for one in answers)
    return Relay(
        streams=streams,
        chunks=chunks,
        chunks_per_s=round(chunks / took_s, 1),
        cpu_us_per_chunk=round(1e6 * cpu_s / max(1, chunks), 1),
        tokens_missing=streams * tokens - chunks,
        unanswered=len(outcomes) - len(answers),
        lateness=round(_lateness(answers), 3),
    )


def _lateness(answers: Sequence[Answer]) -> float:
    halves: tuple[list[float], list[float]] = ([], [])
    for one in answers:
        gaps = [later - earlier for earlier, later in pairwise(one.arrivals_s)]
        halves[0].extend(gaps[: len(gaps) // 2])
        halves[1].extend(gaps[len(gaps) // 2 :])
    if not all(halves):
        raise BenchError("the streams were too short to tell whether they slow down")
    return statistics.fmean(halves[1]) / statistics.fmean(halves[0])


def _first(rate: float, requests: int) -> First:
    arrivals = OpenLoop(rate)
    with _coordinator() as one:
        with ready_server(one.scratch) as url:
            ready = _first_tokens_ms(_asked(url, None, arrivals, requests))
        serving = ("--model", BUNDLED_MODEL_ID, "--backend", "sim", "--max-concurrent", "32")
        instant = {**os.environ, DEVICE_VARIABLE: DEVICES["instant"].name}
        with local_server(serving, instant, one.scratch) as url:
            direct = _first_tokens_ms(_asked(url, None, arrivals, requests))
        with own_fleet(one, 8, "instant"):
            began_cpu_s = one.cpu_s()
            outcomes = _asked(one.url, one.api_key, arrivals, requests)
            cpu_s = one.cpu_s() - began_cpu_s
    through = _first_tokens_ms(outcomes)
    return First(
        rate_per_s=rate,
        requests=requests,
        ready_p50_ms=ready[49],
        ready_p99_ms=ready[98],
        direct_p50_ms=direct[49],
        direct_p99_ms=direct[98],
        through_p50_ms=through[49],
        through_p99_ms=through[98],
        added_p50_ms=round(through[49] - direct[49], 2),
        added_p99_ms=round(through[98] - direct[98], 2),
        cpu_ms_per_request=round(1e3 * cpu_s / (requests + WARMING), 3),
        unanswered=sum(not isinstance(one, Answer) for one in outcomes),
    )


def _asked(url: str, api_key: str | None, arrivals: Arrivals, requests: int) -> list[Outcome]:
    """After some that are not looked at."""
    asyncio.run(_ask(url, api_key, arrivals, WARMING, FIRST_TOKENS))
    return asyncio.run(_ask(url, api_key, arrivals, requests, FIRST_TOKENS))


def _first_tokens_ms(outcomes: Sequence[Outcome]) -> list[float]:
    """Percentiles 1 to 99."""
    taken = [1e3 * (one.arrivals_s[0] - one.sent_s) for one in outcomes if isinstance(one, Answer) and one.arrivals_s]
    if len(taken) < len(outcomes) // 2:
        raise BenchError(f"only {len(taken)} of {len(outcomes)} requests were answered")
    return [round(one, 2) for one in statistics.quantiles(taken, n=100, method="inclusive")]


async def _ask(url: str, api_key: str | None, arrivals: Arrivals, requests: int, tokens: int) -> list[Outcome]:
    load = plan_load(arrivals, requests, Fixed(PROMPT_TOKENS), Fixed(tokens), seed=0)
    target = Target(url, BUNDLED_MODEL_ID, {"temperature": 0, "ignore_eos": True})
    async with client.connected(url, api_key) as connection:
        return await client.run_load(connection, target, load, TokenIds())


def _told(found: dict[str, Any]) -> str:
    rows = [(part, found[part]) for part in PARTS if part in found]
    return "\n".join(f"{part:6} " + ", ".join(f"{key} {value}" for key, value in row.items()) for part, row in rows)
