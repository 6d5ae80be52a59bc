"""A coordinator of this installation with its embedded Postgres, and simulated providers, for as long as they are
measured."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from provider.bench import client
from provider.bench.client import BenchError
from provider.bench.local_server import serving
from provider.bench.own_processes import own_process

CONNECT_S = 180.0


@dataclass(frozen=True, slots=True)
class Coordinator:
    url: str
    process: psutil.Process
    api_key: str
    provider_token: str
    scratch: Path

    def cpu_s(self) -> float:
        """Of this process; Postgres is another's."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def alive(self) -> int:
        """Providers that are there and have loaded something."""
        providers = client.get_json(f"{self.url}/v1/fleet", self.api_key)["providers"]
        return sum(one["state"] == "alive" and bool(one["slots"]) for one in providers)


@contextlib.contextmanager
def own_coordinator(scratch: Path) -> Iterator[Coordinator]:
    """`scratch`: a directory of its own. Raises BenchError."""
    data, environment = ("--data-dir", str(scratch / "data")), {**os.environ, "HOME": str(scratch)}
    with serving(("coordinator", "serve", *data), environment, scratch / "coordinator.log") as (url, process):
        api_key, provider_token = (_token(kind, data, environment) for kind in ("api", "provider"))
        yield Coordinator(url, psutil.Process(process.pid), api_key, provider_token, scratch)


@contextlib.contextmanager
def own_fleet(coordinator: Coordinator, providers: int, machine: str, *more: str) -> Iterator[None]:
    """From when all of them are there. `more`: arguments of `fleet simulate`. Raises BenchError."""
    told = (
        "fleet", "simulate", "--providers", str(providers), "--machine", machine, *more,
        "--coordinator", f"{coordinator.url.replace('http', 'ws', 1)}/ws/provider",
        "--token", coordinator.provider_token,
    )  # fmt: skip
    with own_process(told, os.environ, coordinator.scratch / "fleet.log"):
        deadline = time.monotonic() + CONNECT_S
        while (alive := coordinator.alive()) < providers:
            if time.monotonic() > deadline:
                raise BenchError(f"{alive} of {providers} providers are connected after {CONNECT_S:.0f} s.")
            time.sleep(1)
        yield


def _token(kind: str, data: tuple[str, str], environment: dict[str, str]) -> str:
    command = (sys.executable, "-m", "provider.cli", "coordinator", "token", "create", "--kind", kind, *data)
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if made.returncode:
        raise BenchError(f"no token could be made: {made.stderr.strip()}")
    return made.stdout.split()[-1]
