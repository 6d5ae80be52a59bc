"""Measures one model's activations, in a process of its own: `python -m provider.bench.activation_run DIRECTORY`.

The real engine serves eight chats with long prompts, half greedy and half sampled. After every step, what MLX had at
its peak beyond the weights and beyond the keys, values and states that the ledger counts is what the step took.
One JSON object on stdout; progress on stderr.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from provider.backends.mlx.device import device_name, reset_peak
from provider.bench.activation import BATCH, Lengths, Measured, lengths_for
from provider.building import build
from provider.engine import Engine
from provider.generation import GenerationRequest, Sampling
from provider.models.checkpoint import read_checkpoint
from provider.pipe import DraftSpec, LoadSpec
from provider.scheduler.sequence import State

GREEDY = Sampling(temperature=0.0)
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=50, min_p=0.02)
TOLD_EVERY = 16


@dataclass(frozen=True, slots=True)
class Taken:
    """Of one step: bytes beyond weights and `held_bytes`, those of the chats; and what the process had grown by then,
    beyond both too."""

    activation_bytes: int
    process_bytes: int
    held_bytes: int
    prefilled: bool


def measure(directory: Path) -> Measured:
    engine, loaded = build(_spec(directory))
    lengths = lengths_for(loaded.n_ctx, engine.scheduler.limits.chunk_tokens)
    weights, resident = engine.backend.memory().active_bytes, _resident_bytes()
    for number in range(BATCH):
        engine.submit(_request(number, lengths, loaded.vocab_size))
    steps = list(_steps(engine, weights, resident))
    device = device_name()
    return Measured(
        device=device,
        batch=BATCH,
        prompt_tokens=lengths.prompt_tokens,
        output_tokens=lengths.output_tokens,
        active_bytes=weights,
        kv_bytes=max(step.held_bytes for step in steps),
        prefill_bytes=max((step.activation_bytes for step in steps if step.prefilled), default=0),
        decode_bytes=max((step.activation_bytes for step in steps if not step.prefilled), default=0),
        process_bytes=max(step.process_bytes for step in steps) if device.startswith("cpu") else 0,
    )


def _steps(engine: Engine, weight_bytes: int, resident_bytes: int) -> Iterator[Taken]:
    """Until the first chat ends: from then on there are no longer eight."""
    count = 0
    while engine.scheduler.open == BATCH:
        before = _held_by_chat(engine)
        reset_peak()
        plan = engine.step(lambda events: None).plan
        after = _held_by_chat(engine)
        held = sum(max(before[id], after.get(id, 0)) for id in before)
        captured = len(plan.decode) * max(plan.drafts, default=0) * engine.backend.facts.state_bytes
        peak = engine.backend.memory().peak_bytes
        yield Taken(
            activation_bytes=max(0, peak - weight_bytes - held - captured),
            process_bytes=max(0, _resident_bytes() - resident_bytes - held - captured),
            held_bytes=held,
            prefilled=bool(plan.prefill),
        )
        count += 1
        if count % TOLD_EVERY == 0:
            running = engine.scheduler.counts().running
            print(f"step {count}: {running} of {BATCH} chats past their prompts", file=sys.stderr, flush=True)


def _held_by_chat(engine: Engine) -> dict[str, int]:
    """What exists by now, where the ledger already counts all of a prompt."""
    pool = engine.scheduler.pool
    inside = (State.PREFILL, State.RUNNING)
    return {
        one.id: pool.sequence_bytes(one.computed) if one.state in inside else 0 for one in engine.scheduler.states()
    }


def _spec(directory: Path) -> LoadSpec:
    """As the model is served by default: with its own prediction head, where it has one."""
    probe = read_checkpoint(directory).mtp
    drafts = DraftSpec(mode="auto", killed=False, declaration=probe.declaration.value, model_type=probe.model_type)
    return LoadSpec(backend="mlx", directory=str(directory), max_concurrent=BATCH, drafts=drafts)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _request(number: int, lengths: Lengths, vocab_size: int) -> GenerationRequest:
    rng = random.Random(number)
    return GenerationRequest(
        request_id=str(number),
        prompt=[rng.randrange(vocab_size) for _ in range(lengths.prompt_tokens)],
        max_tokens=lengths.output_tokens,
        sampling=SAMPLED if number % 2 else GREEDY,
    )


if __name__ == "__main__":
    json.dump(asdict(measure(Path(sys.argv[1]))), sys.stdout)
