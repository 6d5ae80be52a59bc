"""What a coordinator adds to the time to first token: the same requests, straight to a provider and through it.

    python -m tools.bench_coordinator [--requests 200] [--json]

Two providers with the simulated backend (which costs no time), one behind `local` and one behind a coordinator with its
embedded Postgres; requests alternate between the two, one at a time, on a kept-alive connection each.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.integration.processes import free_port, health, run, running, until

MODEL = "darkbloom-demo"


def measure(requests: int, scratch: Path) -> dict[str, Any]:
    fleet, alone = free_port(), free_port()
    fleet_url, alone_url = f"http://127.0.0.1:{fleet}", f"http://127.0.0.1:{alone}"
    data = ["--data-dir", str(scratch / "data")]
    with running(scratch / "coordinator.log", "coordinator", "serve", "--port", str(fleet), *data):
        until(lambda: health(fleet_url) == "ok", what="the coordinator")
        provider_token, api_key = (token(scratch, kind, data) for kind in ("provider", "api"))
        joining = [
            "provider",
            "start",
            "--coordinator",
            f"ws://127.0.0.1:{fleet}/ws/provider",
            "--token",
            provider_token,
        ]
        serving = ["--model", MODEL, "--backend", "sim"]
        with (
            running(scratch / "provider.log", *joining, *serving, "--data-dir", str(scratch / "provider")),
            running(scratch / "local.log", "local", "--port", str(alone), *serving),
            httpx.Client(base_url=alone_url, timeout=60) as straight,
            httpx.Client(base_url=fleet_url, timeout=60, headers={"Authorization": f"Bearer {api_key}"}) as through,
        ):
            until(lambda: health(alone_url) == "ok", what="the provider")
            until(lambda: bool(through.get("/v1/models").json()["data"]), what="the fleet's provider")
            pairs = [(first_token_ms(straight, n), first_token_ms(through, n)) for n in range(requests + 20)][20:]
    straight_ms, through_ms = (sorted(times) for times in zip(*pairs, strict=True))
    return {
        "requests": requests,
        "straight_p50_ms": statistics.median(straight_ms),
        "through_p50_ms": statistics.median(through_ms),
        "added_p50_ms": statistics.median(through_ms) - statistics.median(straight_ms),
        "added_p99_ms": through_ms[int(0.99 * requests)] - straight_ms[int(0.99 * requests)],
    }


def token(scratch: Path, kind: str, data: list[str]) -> str:
    made = run(scratch / "token.log", "coordinator", "token", "create", "--kind", kind, *data)
    return made.stdout.split()[-1]


def first_token_ms(client: httpx.Client, number: int) -> float:
    body = {"model": MODEL, "prompt": f"number {number}", "max_tokens": 4, "stream": True, "ignore_eos": True}
    began = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: {"))
        first = time.perf_counter()
        for _ in lines:
            pass
    return 1000 * (first - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(told.requests, Path(scratch))
    if told.json:
        print(json.dumps(result))
    else:
        print(", ".join(f"{key} {value:.2f}" for key, value in result.items()))


if __name__ == "__main__":
    main()
