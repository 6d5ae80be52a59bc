"""How long a sampled token takes to reach a client: from the worker's report to the bytes at the client's socket.

    python -m tools.bench_delivery [--streams 8] [--tokens 100] [--json]

The server (real worker process, real HTTP) runs in this process and notes when each token was sampled, by the
clock that all processes of a machine share; the client is a process of its own.
"""

import argparse
import asyncio
import json
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import uvloop

from provider.api.app import create_app
from provider.config import read_config
from provider.generation import Delta
from provider.http_server import bind, server_for
from provider.local import create_residency
from provider.pipe import Report
from provider.slot import ModelSlot
from provider.status import Status

MODEL = "darkbloom-demo"


class Watched:
    """Notes, per sequence, when each piece of text was sampled."""

    def __init__(self, slot: ModelSlot) -> None:
        self.sampled: dict[str, list[float]] = {}
        self._on_report = slot._on_report
        slot._on_report = self._note  # type: ignore[method-assign]  # the one place where reports arrive

    def _note(self, report: Report) -> None:
        for event in report.events:
            if isinstance(event, Delta) and event.text:
                self.sampled.setdefault(event.request_id, []).append(report.at)
        self._on_report(report)


async def measure(streams: int, tokens: int) -> list[float]:
    """Seconds from sampling to arrival, for every piece of text of every stream."""
    residency = create_residency(read_config({}, (MODEL,), file=Path("/nonexistent")))
    (slot,) = residency.slots
    watched = Watched(slot)
    await residency.start()
    sock: socket.socket = bind("127.0.0.1", 0)
    server = server_for(create_app(residency, Status(residency)))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.bench_delivery", "--client", str(sock.getsockname()[1]),
        "--streams", str(streams), "--tokens", str(tokens), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await client.communicate()
    await residency.stop()
    server.should_exit = True
    await serving
    arrivals: list[list[float]] = json.loads(output)
    return match(list(watched.sampled.values()), arrivals)


def match(sampled: list[list[float]], arrived: list[list[float]]) -> list[float]:
    """An arrival list belongs to the sequence of its length whose first token was sampled last before it arrived."""
    delays = []
    for times in arrived:
        own = min(
            (one for one in sampled if one[0] <= times[0] and len(one) == len(times)), key=lambda s: times[0] - s[0]
        )
        sampled.remove(own)
        delays += [arrival - sampling for sampling, arrival in zip(own, times, strict=True)]
    return delays


async def client(port: int, streams: int, tokens: int) -> list[list[float]]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
        return await asyncio.gather(*(stream(http, number, tokens) for number in range(streams)))


async def stream(http: httpx.AsyncClient, number: int, tokens: int) -> list[float]:
    body: dict[str, Any] = {
        "model": MODEL, "prompt": f"Count from {number} to 99.", "max_tokens": tokens,
        "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    times = []
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                times.append(time.monotonic())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    if told.client:
        print(json.dumps(asyncio.run(client(told.client, told.streams, told.tokens))))
        return
    delays = sorted(1000 * delay for delay in uvloop.run(measure(told.streams, told.tokens)))
    result = {
        "streams": told.streams,
        "pieces": len(delays),
        "p50_ms": statistics.median(delays),
        "p99_ms": delays[int(0.99 * len(delays))],
        "max_ms": delays[-1],
    }
    if told.json:
        print(json.dumps(result))
    else:
        print(", ".join(f"{key} {value:.2f}" if "ms" in key else f"{key} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
