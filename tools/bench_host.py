"""What a decode step costs in Python, outside MLX: the engine and the pipe over a backend that computes nothing.

    python -m tools.bench_host [--rows 8] [--json]

Counts planning, committing, detokenising, stop strings, events and packing the step's message.
"""

import argparse
import json
import statistics
import time

from provider.building import build
from provider.generation import GenerationRequest, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.pipe import FromWorker, LoadSpec, pack
from provider.worker import run_step


def measure(rows: int, steps: int) -> list[float]:
    """Milliseconds of each step."""
    spec = LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=rows)
    engine, _ = build(spec)
    sampling = Sampling(temperature=0)
    for number in range(rows):
        request = GenerationRequest(
            request_id=str(number), prompt=[7] * 32, max_tokens=4000, sampling=sampling, stop=["never to be seen"]
        )
        engine.submit(request)
    sent: list[bytes] = []

    def send(message: FromWorker) -> None:
        sent.append(pack(message))

    run_step(engine, send)
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        run_step(engine, send)
        taken.append(1000 * (time.perf_counter() - began))
        sent.clear()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    taken = sorted(measure(told.rows, told.steps))
    result = {"rows": told.rows, "p50_ms": statistics.median(taken), "p99_ms": taken[int(0.99 * len(taken))]}
    print(json.dumps(result) if told.json else ", ".join(f"{key} {value:.3f}" for key, value in result.items()))


if __name__ == "__main__":
    main()
