"""`darkbloom-py bench parking`: what parking costs those who are not parked, with the real engine in this process.

Ratios are of one run: gaps between the tokens of chats that stay, around a park, a copy or a return, against the
median step without; and the time that planning and looking for copies takes, against the step's.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer

from provider.backends.sim_timing import DEVICES
from provider.bench.simulated import FACTS, Chat, Run
from provider.engine import Engine
from provider.generation import Delta, Event, GenerationRequest, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.parking.files import ParkFiles
from provider.parking.lot import Lot, Tiers
from provider.parking.mover import ThreadMover
from provider.scheduler.parking import ParkRules
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler

EVERY = 48


@dataclass(frozen=True, slots=True)
class Found:
    """Milliseconds. `extra_p95_steps`: of a survivor's gap around a park or a return, beyond the median, in medians."""

    parks: int
    step_ms: float
    gap_p95_ms: float
    extra_p95_steps: float
    bookkeeping_share: float
    of_copy_free_bound: float


class Watched(Engine):
    """An engine that notes how long it plans and looks for copies."""

    planning_s = 0.0

    def _collect(self, now_s: float) -> None:
        started = time.perf_counter()
        super()._collect(now_s)
        self.scheduler.plan(0, now_s)  # once more than the step does: the same work, timed
        self.planning_s += time.perf_counter() - started


@dataclass(slots=True)
class Play:
    engine: Watched
    chats: int
    tokens: int

    def run(self) -> tuple[dict[str, list[tuple[float, bool]]], list[float], int]:
        """Each chat's tokens (when, and whether copies were about), the seconds of steps without any, and parks."""
        at: dict[str, list[tuple[float, bool]]] = {}
        about, parks, plain = False, 0, list[float]()

        def note(events: Sequence[Event]) -> None:
            for event in events:
                if isinstance(event, Delta):
                    at.setdefault(event.request_id, []).append((time.perf_counter(), about))

        for number in range(self.chats):
            self.engine.submit(request(str(number), 16 + number, self.tokens))
        while self.engine.busy:
            moving, started = self.engine.scheduler.moving, time.perf_counter()
            about = moving
            step = self.engine.step(note)
            about = moving or step.plan.moves
            note(step.events)
            parks += len(step.plan.park)
            if step.plan.decode and not about and not step.plan.prefill:
                plain.append(time.perf_counter() - started)
            if not step.plan:
                time.sleep(self.engine.idle_s())
        return at, plain, parks


def request(id: str, prompt_tokens: int, max_tokens: int) -> GenerationRequest:
    prompt = [300 + (7 * int(id) + n) % 500 for n in range(prompt_tokens)]
    return GenerationRequest(request_id=id, prompt=prompt, max_tokens=max_tokens, sampling=Sampling(temperature=0))


def measure(chats: int, tokens: int, directory: Path) -> Found:
    from provider.backends.mlx.backend import MlxBackend
    from provider.backends.mlx.park_codec import MlxCodec

    backend = MlxBackend(BUNDLED_MODEL_DIR)
    backend.park_with(Lot(Tiers(2**32), ParkFiles(directory), MlxCodec(), ThreadMover()))
    engine = Watched(
        Scheduler(Limits(8, 4096), Pool(10**6), ParkRules(every=EVERY)), backend, lambda ids, _: "x" * len(ids)
    )
    at, plain, parks = Play(engine, chats, tokens).run()
    step_s = median(plain)
    gaps = [later - earlier for own in at.values() for (earlier, _), (later, about) in pairwise(own) if about]
    survivors = sorted(gaps)[: -parks or None]  # the longest are the pauses of those who were parked
    p95_s = quantiles(survivors, n=20, method="inclusive")[18]
    steps = sum(len(own) for own in at.values()) / chats
    backend.close()
    return Found(
        parks=parks,
        step_ms=round(1000 * step_s, 3),
        gap_p95_ms=round(1000 * p95_s, 3),
        extra_p95_steps=round((p95_s - step_s) / step_s, 3),
        bookkeeping_share=round(engine.planning_s / steps / step_s, 4),
        of_copy_free_bound=round(simulated(1e9) / simulated(float("inf")), 3),
    )


def simulated(copy_bytes_per_s: float) -> float:
    """Tokens per second of eight chats in a pool for three."""
    pool_bytes = 3 * (FACTS.state_bytes + 2048 * FACTS.kv_bytes_per_token)
    trace = [Chat(0.0, 500, 1500)] * 8
    run = Run(trace, ParkRules(), DEVICES["m3-max"], pool_bytes, copy_bytes_per_s=copy_bytes_per_s)
    return run.outcome().tokens_per_s


def parking(
    chats: Annotated[int, typer.Option(help="Chats at once.", min=2, max=8)] = 4,
    tokens: Annotated[int, typer.Option(help="Tokens of each.", min=2 * EVERY)] = 4 * EVERY,
    as_json: Annotated[bool, typer.Option("--json", help="One object on stdout.")] = False,
) -> None:
    """What parking costs those who are not parked, with the bundled model on this machine."""
    with tempfile.TemporaryDirectory() as directory:
        found = asdict(measure(chats, tokens, Path(directory)))
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>20}  {value}")
