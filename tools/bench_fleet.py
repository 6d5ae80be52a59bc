"""What the coordinator's own work costs, in parts.

    python -m tools.bench_fleet [route ...] [--json]

`route`   one decision, and the renewal of a provider's rows by a heartbeat and by a request, in a fleet in which every
          provider advertises every model, has some of them loaded, and a tenth of them cannot take a request.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coordinator import fleet
from coordinator.config import Timings
from coordinator.fleet import Hold, ProviderView
from coordinator.routing import Request, explain, route
from coordinator.store.records import MemoryTables
from coordinator.views import Views
from provider.protocol import Hardware, Heartbeat, ModelAd, MtpStatus, Register, Slot

MODELS = 20
LOADED = 3
SIZES = (1_000, 10_000)
GIB = 2**30
TABLES = MemoryTables({}, {})


def bench_route(decisions: int = 2000, seed: int = 1) -> list[dict[str, Any]]:
    return [_fleet_of(size, decisions, random.Random(seed)) for size in SIZES]


def _fleet_of(size: int, decisions: int, rng: random.Random) -> dict[str, Any]:
    views, timings, now_s = Views(), Timings(), 1000.0
    for number in range(size):
        view = _view(number, now_s, rng)
        views[view.provider_id] = view
    ids = list(views)
    requests = [Request(f"m{rng.randrange(MODELS)}", rng.randrange(10, 4000)) for _ in range(200)]

    def decide(number: int) -> None:
        route(requests[number % len(requests)], views, now_s, rng, timings, TABLES)

    def beat(number: int) -> None:
        one = views[ids[number % size]]
        views[one.provider_id] = fleet.beaten(one, _heartbeat(number % size, rng), now_s)

    def send(number: int) -> None:
        one = views[ids[number % size]]
        views[one.provider_id] = fleet.held(one, "job.1", Hold("m0", 100))
        views[one.provider_id] = fleet.released(views[one.provider_id], "job.1")

    def explains(number: int) -> None:
        explain(requests[number % len(requests)], views, now_s, timings, TABLES)

    return {
        "providers": size,
        "models": MODELS,
        "route_us": _times_us(decide, decisions),
        "heartbeat_us": _times_us(beat, decisions),
        "lease_us": _times_us(send, decisions),
        "explain_us": _times_us(explains, 10),
    }


def _times_us(work: Callable[[int], None], times: int) -> dict[str, float]:
    """On the clock, and of the processor: where other programs run too, the two part."""
    taken, computed = [], []
    for number in range(times):
        began, began_cpu = time.perf_counter(), time.thread_time()
        work(number)
        taken.append(1e6 * (time.perf_counter() - began))
        computed.append(1e6 * (time.thread_time() - began_cpu))
    p99 = sorted(taken)[int(0.99 * times)]
    told = {"p50": statistics.median(taken), "p99": p99, "cpu_p50": statistics.median(computed)}
    return {name: round(value, 1) for name, value in told.items()}


def _view(number: int, now_s: float, rng: random.Random) -> ProviderView:
    kind, memory_gib = rng.choice([("unified", 64), ("discrete", 80), ("host", 32)])
    ads = [
        ModelAd(
            id=f"m{model}",
            model_type="qwen3_5",
            size_bytes=(1 + model) * GIB,
            context_length=32_768,
            kv_bytes_per_token=20_000,
            state_bytes=0,
            mtp=MtpStatus(active=False),
        )
        for model in range(MODELS)
    ]
    message = Register(
        protocol=1,
        provider_id=f"00000000-0000-4000-8000-{number:012}",
        name=f"p{number}",
        version="0.9.0",
        backend="sim",
        hardware=Hardware(chip="bench", memory_bytes=memory_gib * GIB, memory_kind=kind, cores=8),
        models=ads,
    )
    view = fleet.beaten(fleet.registered(message, 1, now_s), _heartbeat(number, rng), now_s)
    return replace(view, draining=True) if rng.random() < 0.1 else view


def _heartbeat(number: int, rng: random.Random) -> Heartbeat:
    """`number` decides what is loaded, `rng` how busy it is."""
    loaded = [(number * 7 + place) % MODELS for place in range(LOADED)]
    return Heartbeat.model_validate(
        {
            "status": "serving",
            "capacity_seq": 1,
            "memory": {
                "physical_bytes": 64 * GIB,
                "effective_cap_bytes": 50 * GIB,
                "active_bytes": 8 * GIB,
                "cache_bytes": 0,
                "activation_reserve_bytes": 2 * GIB,
                "free_for_load_bytes": 20 * GIB,
            },
            "slots": [_slot(model, rng) for model in loaded],
        }
    )


def _slot(model: int, rng: random.Random) -> Slot:
    return Slot(
        model=f"m{model}",
        state="running",
        running=rng.randrange(4),
        max_concurrency=8,
        tokens_used=rng.randrange(20_000),
        tokens_max=60_000,
        kv_bytes_per_token=20_000,
        decode_tps=rng.uniform(20, 200),
        prefill_tps=rng.uniform(200, 5000),
    )


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {"route": bench_route}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    told = parser.parse_args()
    results = {part: PARTS[part]() for part in told.parts or PARTS}
    if told.json:
        print(json.dumps(results))
        return
    for part, rows in results.items():
        for row in rows:
            print(part, ", ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
