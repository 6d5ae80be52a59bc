"""The coordinator against LiteLLM's proxy: the same simulated model behind each, on the same machine, taking turns.

    python -m tools.bench_gateway --venv DIR [--rate 20] [--requests 300] [--json]

LiteLLM is installed into a virtual environment at DIR on first use (`litellm[proxy]`, no database, one worker). Behind
the coordinator are two providers with the simulated backend, behind the proxy two `local` servers with the same. Each
gateway is pinned to the first CPU core, everything else to the others. Printed of each: milliseconds to the first token
at a rate, beside those of asking a backend directly; and whole streamed answers of 8 tokens a second when 16 clients
ask without a pause, over the cores that the gateway used meanwhile.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from provider.backends.sim_timing import DEVICE_VARIABLE
from provider.bench import client
from provider.bench.client import Target
from provider.bench.load import Arrivals, ClosedLoop, Fixed, OpenLoop, plan_load
from provider.bench.local_server import free_port, local_server, wait_until_ready
from provider.bench.own_fleet import own_coordinator, own_fleet
from provider.bench.prompts import Words
from provider.bench.report import Answer, Outcome
from provider.models.bundled import BUNDLED_MODEL_ID
from tools.bench_serving import install

TOKENS, CLIENTS, BACKENDS = 8, 16, 2
SIM = {DEVICE_VARIABLE: "instant"}


@dataclass(frozen=True, slots=True)
class Gateway:
    url: str
    key: str
    pid: int

    def cpu_s(self) -> float:
        processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        served = [one for one in processes if "postgres" not in one.name()]
        return sum(times.user + times.system for times in (one.cpu_times() for one in served))


@dataclass(frozen=True, slots=True)
class Found:
    first_p50_ms: float
    first_p99_ms: float
    added_p50_ms: float
    added_p99_ms: float
    answers_per_s: float
    cores: float
    answers_per_s_and_core: float
    unanswered: int


@contextlib.contextmanager
def coordinator(scratch: Path) -> Iterator[Gateway]:
    with own_coordinator(scratch) as one, own_fleet(one, BACKENDS, "instant", "--max-concurrent", "32"):
        yield Gateway(one.url, one.api_key, one.process.pid)


@contextlib.contextmanager
def litellm(venv: Path, scratch: Path) -> Iterator[Gateway]:
    program, port, key = venv / "bin" / "litellm", free_port(), f"sk-{secrets.token_hex(16)}"
    install(venv, ["litellm[proxy]"])
    with contextlib.ExitStack() as stack:
        backends = [stack.enter_context(backend(scratch / f"backend-{number}")) for number in range(BACKENDS)]
        models = [
            {
                "model_name": BUNDLED_MODEL_ID,
                "litellm_params": {
                    "model": f"text-completion-openai/{BUNDLED_MODEL_ID}", "api_base": f"{url}/v1", "api_key": "none",
                },
            }
            for url in backends
        ]  # fmt: skip
        config, log = scratch / "litellm.yaml", scratch / "litellm.log"
        config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": key}}))
        command = [program, "--config", config, "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
        environment = {**os.environ, "HOME": str(scratch), "LITELLM_LOG": "ERROR"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, log, "/health/liveliness")
            yield Gateway(url, key, process.pid)
        finally:
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def backend(scratch: Path) -> Iterator[str]:
    scratch.mkdir()
    serving = ("--model", BUNDLED_MODEL_ID, "--backend", "sim", "--max-concurrent", "32")
    with local_server(serving, {**os.environ, **SIM}, scratch) as url:
        yield url


async def ask(url: str, key: str | None, arrivals: Arrivals, requests: int) -> list[Outcome]:
    load = plan_load(arrivals, requests, Fixed(16), Fixed(TOKENS), seed=0)
    target = Target(url, BUNDLED_MODEL_ID, {"temperature": 0})
    async with client.connected(url, key) as connection:
        return await client.run_load(connection, target, load, Words(1.5))


def percentiles_ms(outcomes: list[Outcome]) -> tuple[float, float]:
    taken = [1e3 * (one.arrivals_s[0] - one.sent_s) for one in outcomes if isinstance(one, Answer) and one.arrivals_s]
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return cuts[49], cuts[98]


def measure(one: Gateway, direct: tuple[float, float], rate: float, requests: int) -> Found:
    first, *others = range(os.cpu_count() or 1)
    for process in (psutil.Process(one.pid), *psutil.Process(one.pid).children(recursive=True)):
        if others and "postgres" not in process.name():
            process.cpu_affinity([first])
    asyncio.run(ask(one.url, one.key, ClosedLoop(CLIENTS), 100))
    paced = asyncio.run(ask(one.url, one.key, OpenLoop(rate), requests))
    p50, p99 = percentiles_ms(paced)
    began_s, began_cpu_s = time.monotonic(), one.cpu_s()
    pressed = asyncio.run(ask(one.url, one.key, ClosedLoop(CLIENTS), 2 * requests))
    took_s = time.monotonic() - began_s
    cores = (one.cpu_s() - began_cpu_s) / took_s
    answered = sum(isinstance(it, Answer) for it in pressed)
    return Found(
        first_p50_ms=round(p50, 2),
        first_p99_ms=round(p99, 2),
        added_p50_ms=round(p50 - direct[0], 2),
        added_p99_ms=round(p99 - direct[1], 2),
        answers_per_s=round(answered / took_s, 1),
        cores=round(cores, 2),
        answers_per_s_and_core=round(answered / took_s / cores, 1),
        unanswered=len(paced) + len(pressed) - answered - sum(isinstance(it, Answer) for it in paced),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    others = [*range(os.cpu_count() or 1)][1:]
    if others:
        psutil.Process().cpu_affinity(others)
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        with backend(scratch / "direct") as url:
            asyncio.run(ask(url, None, ClosedLoop(CLIENTS), 100))
            direct = percentiles_ms(asyncio.run(ask(url, None, OpenLoop(told.rate), told.requests)))
        results: dict[str, object] = {"rate_per_s": told.rate, "direct_p50_ms": direct[0], "direct_p99_ms": direct[1]}
        with coordinator(scratch) as ours:
            results["darkbloom-py"] = asdict(measure(ours, direct, told.rate, told.requests))
        with litellm(told.venv, scratch) as theirs:
            results["litellm"] = asdict(measure(theirs, direct, told.rate, told.requests))
    print(json.dumps(results) if told.json else "\n".join(f"{name}: {value}" for name, value in results.items()))


if __name__ == "__main__":
    main()
