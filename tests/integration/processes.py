"""Real `darkbloom-py` processes for tests: started as a user starts them, watched, and gone afterwards."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

READY_S = 60.0
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For requests that need none: httpx would else read all authorities for each, which takes 50 ms of processor time."""


@dataclass(frozen=True, slots=True)
class Command:
    """A running command and what it has printed so far."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def lines(self) -> list[str]:
        """The command lines of the descendants."""
        return [_command_line(one) for one in self.descendants()]

    def find(self, *words: str) -> psutil.Process:
        """The descendant whose command line has all these words."""
        found = [one for one in self.descendants() if all(word in _command_line(one) for word in words)]
        assert found, f"no process with {words}: {self.lines()}"
        return found[0]

    def interrupt(self, within_s: float = 30.0) -> int:
        """Ctrl-C, and how it exits."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(within_s)


@contextlib.contextmanager
def running(log: Path, *arguments: str, **environment: str) -> Iterator[Command]:
    """`darkbloom-py ARGUMENTS`, killed with its descendants at the end should it still run."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "provider.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "HOME": str(log.parent), **environment},
        )
    command = Command(process, log)
    try:
        yield command
    finally:
        left = command.descendants()
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def run(log: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "provider.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HOME": str(log.parent), **environment},
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def until(condition: Callable[[], bool], within_s: float = READY_S, what: str = "the condition") -> None:
    """Waits for a condition of the world outside this process."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within {within_s} s"
        time.sleep(0.02)


def health(url: str) -> str | None:
    """What /health says; None while nobody answers."""
    try:
        return str(httpx.get(f"{url}/health", timeout=5, verify=NO_TLS).json()["status"])
    except (httpx.HTTPError, ValueError):
        return None


def gone(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes if _exists(one))


def _exists(process: psutil.Process) -> bool:
    try:
        process.status()
    except psutil.NoSuchProcess:
        return False
    return True


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
