"""The engine's own step against mlx-lm's BatchGenerator, on the same model in one process, taking turns.

    python -m tools.bench_engine [--dtype float32] [--steps 32] [--rounds 5] [--json]

Prints, for each set of prompt lengths, milliseconds per decode step and prefill tokens per second of both, and the
ratio (above 1: ours is faster). Both run with mx.compile off, as the engine does on the CPU; `--compile` leaves it
on for mlx-lm.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

from provider.backends.mlx.backend import MlxBackend
from provider.engine import Engine
from provider.generation import GenerationRequest, Sampling
from provider.models.tokenizer import ModelTokenizer
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from tests.demo_variants import VARIANTS, write_variant

CASES = {
    "1 stream": [64],
    "8 equal": [64] * 8,
    "8 mixed": [16, 1500, 64, 900, 32, 400, 128, 1200],
}


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over rounds."""

    case: str
    ours_step_ms: float
    mlx_lm_step_ms: float
    step_ratio: float
    ours_prefill_tps: float
    mlx_lm_prefill_tps: float
    prefill_ratio: float


@dataclass(frozen=True, slots=True)
class Run:
    """One side's round: seconds of each decode step, and of the whole prefill."""

    steps_s: list[float]
    prefill_s: float


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(7, 1000) for _ in range(length)] for length in lengths]


def run_ours(backend: MlxBackend, decode: object, prompts: list[list[int]], steps: int) -> Run:
    scheduler = Scheduler(Limits(max_concurrent=len(prompts), n_ctx=4096), Pool(10**9))
    engine = Engine(scheduler, backend, decode)  # type: ignore[arg-type]
    for number, prompt in enumerate(prompts):
        request = GenerationRequest(
            request_id=str(number), prompt=prompt, max_tokens=4096 - len(prompt), sampling=Sampling(temperature=0)
        )
        engine.submit(request)
    started = time.perf_counter()
    while engine.scheduler.counts().running < len(prompts):
        engine.step(lambda events: None)
    prefill_s = time.perf_counter() - started
    taken = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.step(lambda events: None)
        taken.append(time.perf_counter() - started)
    for number in range(len(prompts)):
        engine.cancel(str(number))
    return Run(taken, prefill_s)


def run_mlx_lm(model: object, prompts: list[list[int]], steps: int) -> Run:
    generator = BatchGenerator(model, max_tokens=4096, prefill_step_size=512)
    generator.insert(prompts)
    started = time.perf_counter()
    while len(generator.next_generated()) < len(prompts):
        pass
    prefill_s = time.perf_counter() - started
    taken = []
    for _ in range(steps):
        started = time.perf_counter()
        generator.next_generated()
        taken.append(time.perf_counter() - started)
    generator.close()
    return Run(taken, prefill_s)


def compare(case: str, lengths: Sequence[int], directory: Path, steps: int, rounds: int, compiled: bool) -> Result:
    prompts = prompts_of(lengths)
    backend = MlxBackend(directory)
    decode = ModelTokenizer(directory).decode
    model, _ = load_model(directory)
    ours, theirs = [], []
    for _ in range(rounds):
        mx.disable_compile()
        ours.append(run_ours(backend, decode, prompts, steps))
        if compiled:
            mx.enable_compile()
        theirs.append(run_mlx_lm(model, prompts, steps))
    backend.close()
    ours_ms, theirs_ms = (1000 * statistics.median(s for run in runs for s in run.steps_s) for runs in (ours, theirs))
    ours_s, theirs_s = (statistics.median(run.prefill_s for run in runs) for runs in (ours, theirs))
    tokens = sum(lengths)
    return Result(case, ours_ms, theirs_ms, theirs_ms / ours_ms, tokens / ours_s, tokens / theirs_s, theirs_s / ours_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=VARIANTS, default="float32")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_variant(told.dtype, Path(scratch))
        for case in told.case or CASES:
            results.append(compare(case, CASES[case], directory, told.steps, told.rounds, told.compile))
            if not told.json:
                one = results[-1]
                print(
                    f"{one.case:10} step {one.ours_step_ms:7.2f} ms, mlx-lm {one.mlx_lm_step_ms:7.2f} ms: "
                    f"{one.step_ratio:.2f}x   prefill {one.ours_prefill_tps:6.0f} tokens/s, "
                    f"mlx-lm {one.mlx_lm_prefill_tps:6.0f}: {one.prefill_ratio:.2f}x",
                    flush=True,
                )
    if told.json:
        print(json.dumps({"dtype": told.dtype, "device": str(mx.default_device()), "cases": [*map(asdict, results)]}))


if __name__ == "__main__":
    main()
