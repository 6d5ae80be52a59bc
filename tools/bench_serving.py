"""`darkbloom-py local` against mlx_lm.server and vllm-mlx: the same model, machine and load over HTTP, taking turns.

    python -m tools.bench_serving --venvs DIR [--dtype float32] [--rounds 3] [--requests 24] [--peer NAME ...] [--json]

Each peer lives in a virtual environment of its own under DIR, made on first use. In every round each server is
started, warmed up, measured and stopped. Prompts are text, so that all three can take them: 32 to 512 tokens, no two
alike. Rates count the tokens that were generated: a server that cannot be told to ignore the end of the text may stop
early, and how often it did is printed. A peer that cannot be installed or started is named with the reason.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from provider.bench import client
from provider.bench.load import ClosedLoop, Fixed, Load, Uniform, plan_load
from provider.bench.local_server import free_port
from provider.bench.prompts import words
from provider.bench.report import Report, report
from provider.errors import DarkbloomError
from provider.models.tokenizer import ModelTokenizer
from tests.demo_variants import VARIANTS, write_variant

PROMPT_TOKENS = Uniform(32, 512)
OUTPUT_TOKENS = Fixed(64)
STREAMS = 8
READY_S = 180.0
STOP_S = 20.0
OURS = "darkbloom-py"
MLX = "mlx[cpu]" if sys.platform == "linux" else "mlx"


class PeerFailed(DarkbloomError):
    """A server that could not be measured; says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """`packages`: what its environment needs; none for this one. `command`: from its bin, the model and a port.
    `model`: the name it answers to; None: the first it lists."""

    name: str
    packages: tuple[str, ...]
    command: Callable[[Path, Path, str], list[str]]
    model: str | None = None


SERVERS = {
    one.name: one
    for one in (
        Server(
            OURS,
            (),
            lambda bin, model, port: [
                sys.executable, "-m", "provider.cli", "local", "--model", str(model), "--port", port,
                "--mtp-mode", "off",
            ],
        ),
        Server(
            "mlx_lm.server",
            ("mlx-lm==0.32.2", MLX),
            lambda bin, model, port: [
                str(bin / "python"), "-m", "mlx_lm", "server", "--model", str(model), "--port", port,
            ],
            model="default_model",
        ),
        Server(
            "vllm-mlx",
            ("vllm-mlx", MLX),
            lambda bin, model, port: [
                str(bin / "vllm-mlx"), "serve", str(model), "--port", port, "--continuous-batching",
            ],
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """One server in one round. `together`: all streams arriving at once, one request each."""

    together: Report
    streams: Report
    solo: Report

    @property
    def reports(self) -> tuple[Report, ...]:
        return self.together, self.streams, self.solo

    def figures(self) -> dict[str, float]:
        assert self.streams.tokens_per_s is not None
        assert self.solo.tokens_per_s is not None
        assert self.together.ttft_ms is not None
        return {
            f"tokens/s, {STREAMS} streams": self.streams.tokens_per_s,
            "tokens/s, 1 stream": self.solo.tokens_per_s,
            f"ms to first token, {STREAMS} together, median": self.together.ttft_ms.p50,
        }


@dataclass(frozen=True, slots=True)
class ExactText:
    """Text prompts that have the wanted number of tokens in the model's own tokenizer."""

    tokenizer: ModelTokenizer

    def make(self, tokens: int, seed: int) -> str:
        text = words(tokens, seed)  # a word has one token at least
        return self.tokenizer.decode(self.tokenizer.encode(text)[:tokens])


def programs(server: Server, venvs: Path) -> Path:
    """The directory of the server's programs."""
    return install(venvs / server.name, server.packages) if server.packages else Path(sys.executable).parent


def install(venv: Path, packages: Sequence[str]) -> Path:
    """The directory of the environment's programs; it is made when it is not there yet. Raises PeerFailed."""
    wanted = " ".join(packages)
    marker = venv / "installed.txt"
    if not marker.exists() or marker.read_text() != wanted:
        say(f"installing {wanted} under {venv}")
        commands = [
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PeerFailed(f"could not be installed: {' '.join(done.stderr.split()[-60:])}")
        marker.write_text(wanted)
    return venv / "bin"


@contextlib.contextmanager
def serving(server: Server, bin: Path, model: Path, log: Path) -> Iterator[str]:
    """The server's URL once it answers; the server and whatever it has started are gone afterwards."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            server.command(bin, model, str(port)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        _until_ready(url, process, log)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success:
                return
        if process.poll() is not None:
            raise PeerFailed(f"ended with status {process.returncode} while starting: {_tail(log)}")
        if time.monotonic() > deadline:
            raise PeerFailed(f"did not answer within {READY_S:.0f} s: {_tail(log)}")
        time.sleep(0.1)


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split()[-60:])


async def measure(server: Server, url: str, style: ExactText, seed: int, requests: int, solo: int) -> Measured:
    """All three loads on a running server; the first answers are thrown away."""
    async with client.connected(url, api_key=None) as connection:
        name = server.model or await client.first_model(connection)
        target = client.Target(url, name, {"temperature": 0, "ignore_eos": True})

        async def run(load: Load) -> Report:
            found = report(await client.run_load(connection, target, load, style))
            if not found.answered:
                reasons = {row.reason for row in (*found.unanswered, *found.rejected)}
                raise PeerFailed(f"answered none of {found.requests} requests: {'; '.join(sorted(reasons))}")
            return found

        def load(streams: int, requests: int, number: int) -> Load:
            return plan_load(ClosedLoop(streams), requests, PROMPT_TOKENS, OUTPUT_TOKENS, seed * 10 + number)

        await run(load(STREAMS, STREAMS, 0))
        return Measured(
            together=await run(load(STREAMS, STREAMS, 1)),
            streams=await run(load(STREAMS, requests, 2)),
            solo=await run(load(1, solo, 3)),
        )


def medians(rounds: Sequence[Measured]) -> dict[str, float]:
    return {name: statistics.median(one.figures()[name] for one in rounds) for name in rounds[0].figures()}


def ratios(ours: Sequence[Measured], theirs: Sequence[Measured]) -> dict[str, float]:
    """Ours to theirs, the median of the rounds' own ratios: what slows a round slows both."""
    pairs = [(one.figures(), other.figures()) for one, other in zip(ours, theirs, strict=True)]
    return {name: statistics.median(one[name] / other[name] for one, other in pairs) for name in pairs[0][0]}


def summary(rounds: Mapping[str, Sequence[Measured]], failed: Mapping[str, str]) -> dict[str, object]:
    ours = rounds.get(OURS)
    return {
        "servers": {
            name: {
                "medians": medians(measured),
                "stopped_early": sum(one.stopped_early for each in measured for one in each.reports),
                "answered": sum(one.answered for each in measured for one in each.reports),
                "asked": sum(one.requests for each in measured for one in each.reports),
                "rounds": [asdict(each) for each in measured],
            }
            for name, measured in rounds.items()
        },
        "failed": dict(failed),
        "ratios": {name: ratios(ours, theirs) for name, theirs in rounds.items() if ours and name != OURS},
    }


def print_summary(rounds: Mapping[str, Sequence[Measured]], failed: Mapping[str, str]) -> None:
    for name, measured in rounds.items():
        print(f"{name}:")
        for what, value in medians(measured).items():
            print(f"  {what:42} {value:9.1f}")
        every = [one for each in measured for one in each.reports]
        for row in (row for one in every for row in (*one.unanswered, *one.rejected)):
            print(f"  request {row.number} is not counted: {row.reason}")
        early, answered = sum(one.stopped_early for one in every), sum(one.answered for one in every)
        if early:
            print(f"  {early} of {answered} answers stopped early: compared per generated token")
        if name != OURS and OURS in rounds:
            for what, ratio in ratios(rounds[OURS], measured).items():
                print(f"  {OURS} to it: {what:42} {ratio:5.2f}x")
    for name, reason in failed.items():
        print(f"{name}: not measured: {reason}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, required=True, help="where the peers' environments are kept")
    parser.add_argument("--dtype", choices=VARIANTS, default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24, help=f"of each round with {STREAMS} streams")
    parser.add_argument("--solo-requests", type=int, default=6, help="of each round with 1 stream")
    parser.add_argument("--peer", choices=[name for name in SERVERS if name != OURS], action="append")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    # An end by signal must unwind too: it is what stops a server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    servers = [SERVERS[OURS], *(SERVERS[name] for name in told.peer or SERVERS if name != OURS)]
    rounds: dict[str, list[Measured]] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_variant(told.dtype, Path(scratch))
        style = ExactText(ModelTokenizer(directory))
        for number in range(told.rounds):
            for server in servers:
                if server.name in failed:
                    continue
                say(f"round {number + 1}: {server.name}")
                try:
                    bin = programs(server, told.venvs)
                    with serving(server, bin, directory, Path(scratch) / f"{server.name}.log") as url:
                        measuring = measure(server, url, style, number, told.requests, told.solo_requests)
                        rounds.setdefault(server.name, []).append(asyncio.run(measuring))
                except DarkbloomError as error:
                    failed[server.name] = str(error)
                    rounds.pop(server.name, None)
    if told.json:
        print(json.dumps({"dtype": told.dtype, "cores": os.cpu_count(), **summary(rounds, failed)}))
    else:
        print_summary(rounds, failed)
    if OURS in failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
