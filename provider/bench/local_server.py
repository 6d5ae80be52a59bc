"""A `darkbloom-py local` of this installation, for as long as it is measured."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from provider.bench.client import BenchError
from provider.bench.own_processes import own_process

READY_S = 900.0
"""A large model is read from disk first."""
TOLD_CHARACTERS = 600


@contextlib.contextmanager
def local_server(arguments: Sequence[str], environment: Mapping[str, str], scratch: Path) -> Iterator[str]:
    """Its URL, once it answers /health with ok. `arguments`: of `local`, the port left out. `scratch`: a directory of
    its own. It ends with this block, or with this process however that ends. Raises BenchError."""
    told = ("local", *arguments, "--data-dir", str(scratch))
    with serving(told, environment, scratch / "local.log") as (url, _):
        yield url


@contextlib.contextmanager
def ready_server(scratch: Path) -> Iterator[str]:
    """The URL of a server that need not compute (provider.bench.ready). As `local_server`."""
    with serving((), os.environ, scratch / "ready.log", "provider.bench.ready") as (url, _):
        yield url


@contextlib.contextmanager
def serving(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path, module: str = "provider.cli"
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Any server of this installation that takes --port, as `own_process`, once it is ready: its URL, and itself."""
    port = free_port()
    with own_process((*arguments, "--port", str(port)), environment, log, module) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, log)
        yield url, process


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path, health: str = "/health") -> None:
    """Raises BenchError, with the end of its log."""
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}{health}", timeout=5, trust_env=False).is_success:
                return
        if process.poll() is not None:
            raise BenchError(f"the server ended with status {process.returncode} while starting: {_tail(log)}")
        if time.monotonic() > deadline:
            raise BenchError(f"the server did not answer within {READY_S:.0f} s: {_tail(log)}")
        time.sleep(0.1)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-TOLD_CHARACTERS:].strip()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
