"""`darkbloom-py bench exact`: what exact concurrency costs on this machine, with the real engine in this process.

In every round one and the same model decodes the same chats with the mode off and in lanes of each row count in turn;
every other round goes the other way about. Ratios are of one round, whose disturbances both sides share.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from provider.bench.client import BenchError
from provider.bench.exact_cost import Case, Choice, Cost, Measured, choice_of, cost_of
from provider.bench.mtp import Counting, say
from provider.building import build
from provider.engine import Engine
from provider.exact.choice import MIX
from provider.generation import Event, GenerationRequest, Sampling
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.models.checkpoint import read_checkpoint
from provider.models.resolve import resolve_model
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.controller import FixedDepth
from provider.pipe import DraftSpec, LoadSpec
from provider.scheduler.pool import Pool
from provider.scheduler.prefilling import SHARED, SOLO
from provider.scheduler.scheduler import Limits, Scheduler

if TYPE_CHECKING:
    from provider.backends.mlx.backend import MlxBackend

STREAMS = MIX
AGGREGATE = 8
"""Streams at which drafting is measured."""
DRAFTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`tokens`: of each stream in each round, beside its prompt and one step that are not measured."""

    prompts: list[list[int]]
    tokens: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model as it was loaded under `on`, which has chosen lanes of `chosen` rows among the `candidates`. `rows`: all
    that it can decode in; in some of them its drafts would have no room."""

    backend: "MlxBackend"
    device: str
    rows: list[int]
    candidates: list[int]
    chosen: int

    @property
    def drafts(self) -> int:
        return min(DRAFTS, self.backend.facts.max_drafts)


def exact(
    model: Annotated[
        str, typer.Option(help="A directory, an id, or darkbloom-demo.", metavar="PATH_OR_ID")
    ] = BUNDLED_MODEL_ID,
    tokens: Annotated[int, typer.Option(help="Of each stream, in each round.", min=2)] = 48,
    rounds: Annotated[int, typer.Option(help="Each measures every case.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure what exact concurrency costs, for each row count of a lane, against the same model without it."""
    found = resolve_model(model)
    subject = load(found.directory)
    prompts = Counting(ModelTokenizer(found.directory))
    plan = Plan(prompts=[prompts.make(0, seed) for seed in range(max(STREAMS))], tokens=tokens, rounds=rounds)
    drafts = subject.drafts
    cases = cases_of(subject.rows, subject.candidates, subject.chosen, drafts)
    measured = list(measure(subject.backend, cases, plan))
    costs = [cost_of(rows, streams, 0, measured) for rows in subject.rows for streams in STREAMS]
    if drafts:
        costs += [cost_of(rows, AGGREGATE, drafts, measured) for rows in subject.candidates]
    choice = choice_of(subject.candidates, subject.chosen, costs)
    if as_json:
        told = {
            "model": found.id,
            "device": subject.device,
            "cores": os.cpu_count(),
            "rounds": rounds,
            "tokens": tokens,
        }
        print(json.dumps({**told, "choice": asdict(choice), "costs": [asdict(one) for one in costs]}))
    else:
        print_costs(found.id, costs, choice)


def load(directory: Path) -> Subject:
    """Raises ModelError for what cannot be exact."""
    from provider.backends.mlx.backend import MlxBackend
    from provider.backends.mlx.lane_grid import LANE_ROWS

    probed = read_checkpoint(directory).mtp
    drafts = DraftSpec(mode="auto", killed=False, declaration=probed.declaration.value, model_type=probed.model_type)
    spec = LoadSpec(backend="mlx", directory=str(directory), max_concurrent=max(STREAMS), drafts=drafts, exact="on")
    engine, loaded = build(spec)
    backend, chosen = engine.backend, loaded.exact.lane_rows
    if not isinstance(backend, MlxBackend) or chosen is None:
        raise BenchError(f"{directory} is not exact: {loaded.exact.reason}")
    candidates = backend.grid.candidates
    rows = [one for one in LANE_ROWS if one <= max(candidates)]
    return Subject(backend=backend, device=loaded.device, rows=rows, candidates=candidates, chosen=chosen)


def cases_of(rows: Sequence[int], candidates: Sequence[int], chosen: int, drafts: int) -> list[Case]:
    """With drafts only those in which they have room. The chosen one is measured beside the mode off."""

    def sides(among: Sequence[int]) -> list[int | None]:
        return [None, chosen, *(one for one in among if one != chosen)]

    plain = [Case(side, streams, 0) for streams in STREAMS for side in sides(rows)]
    return plain if not drafts else [*plain, *(Case(side, AGGREGATE, drafts) for side in sides(candidates))]


def measure(backend: "MlxBackend", cases: Sequence[Case], plan: Plan) -> Iterator[Measured]:
    for number in range(plan.rounds):
        say(f"round {number + 1} of {plan.rounds}")
        for case in cases if number % 2 == 0 else reversed(cases):
            yield Measured(number, case, *rate(backend, case, plan))


def rate(backend: "MlxBackend", case: Case, plan: Plan) -> tuple[float, float]:
    """Tokens per second, of all streams together and while they all decode; and processor milliseconds per token."""
    from provider.backends.mlx.lane_cost import lanes_of

    backend.decode_in_lanes(None if case.rows is None else lanes_of(backend, case.rows))
    limits = Limits(case.streams, 4096, prefilling=SHARED if case.rows is None else SOLO)
    engine = Engine(Scheduler(limits, Pool(10**9)), backend, lambda ids, _: "x" * len(ids), FixedDepth(case.drafts))
    for number, prompt in enumerate(plan.prompts[: case.streams]):
        asked = GenerationRequest(
            request_id=str(number), prompt=prompt, max_tokens=3000, sampling=Sampling(temperature=0)
        )
        engine.submit(asked)
    while engine.scheduler.counts().running < case.streams:
        engine.step(_unheard)
    engine.step(_unheard)
    drawn, wanted, started, cpu_s = 0, plan.tokens * case.streams, time.perf_counter(), time.process_time()
    while drawn < wanted:
        drawn += engine.step(_unheard).drawn
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    for number in range(case.streams):
        engine.cancel(str(number))
    return drawn / seconds, 1000 * cpu_s / drawn


def _unheard(events: Sequence[Event]) -> None:
    """Nobody listens."""


def print_costs(model: str, costs: Sequence[Cost], choice: Choice) -> None:
    heads = ("rows", "streams", "drafts", "off", "exact", "ratio", "rounds", "best", "cpu", "ms")
    title = f"{model}: tokens/s with exact mode off and on; ms from one token of a stream to its next"
    table = Table(*heads, title=title, box=None, pad_edge=False, title_justify="left")
    for one in costs:
        table.add_row(
            *map(str, (one.rows, one.streams, one.drafts)),
            f"{one.off_tokens_per_s:.1f}",
            f"{one.on_tokens_per_s:.1f}",
            f"{one.ratio:.2f}x",
            " ".join(f"{ratio:.2f}" for ratio in one.ratios),
            f"{one.best_ratio:.2f}x",
            f"{one.cpu_ratio:.2f}x",
            f"{one.token_ms:.2f}",
        )
    console = Console(soft_wrap=True)
    console.print(table)
    mix = ", ".join(f"{rows}: {ms:.2f}" for rows, ms in choice.mix_ms.items())
    console.print(f"Lanes of {choice.chosen} rows were chosen at load; here {choice.best} are best (ms, mean: {mix}).")
