"""The daemon-state file: what a running provider says about itself, for `provider status` and doctor."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from provider.errors import ConfigError
from provider.identity import write_atomically
from provider.liveness import lives

WAIT_S = 30.0
"""Longer than a provider that was told to end takes."""
POLL_S = 0.1
FILE_NAME = "daemon-state.json"


@dataclass(frozen=True, slots=True)
class DaemonState:
    """`started_at` is the process's own start time, so that a recycled pid is not taken for the provider.

    `advertised_models`: None = not reported, [] = none.
    """

    pid: int
    started_at: float
    advertised_models: list[str] | None
    details: Mapping[str, Any]


def path_in(data_dir: Path) -> Path:
    return data_dir / FILE_NAME


def write_state(data_dir: Path, advertised_models: list[str] | None, details: Mapping[str, Any]) -> None:
    """Written atomically by the provider itself, at every change it wants known."""
    me = psutil.Process()
    state = {
        "pid": me.pid,
        "started_at": me.create_time(),
        "advertised_models": advertised_models,
        "details": dict(details),
    }
    write_atomically(path_in(data_dir), json.dumps(state))


def read_state(data_dir: Path) -> DaemonState | None:
    """The state of a provider that is running now; None if there is none (a stale or broken file is none)."""
    try:
        told = json.loads(path_in(data_dir).read_text())
        state = DaemonState(told["pid"], told["started_at"], told["advertised_models"], told["details"])
        return state if lives(int(state.pid), float(state.started_at)) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, psutil.Error):
        return None


def refuse_second(data_dir: Path, wait_s: float = WAIT_S) -> None:
    """Raises ConfigError where a provider of that directory is running; one that is about to end is waited for."""
    deadline = time.monotonic() + wait_s
    while (running := read_state(data_dir)) is not None:
        ending = bool(running.details.get("draining"))
        if not ending or time.monotonic() > deadline:
            raise ConfigError(
                f"a provider of {data_dir} is {'draining' if ending else 'already running'} (pid {running.pid}): "
                "end it with `darkbloom-py provider stop`, or pass another --data-dir."
            )
        time.sleep(POLL_S)


def remove_state(data_dir: Path) -> None:
    path_in(data_dir).unlink(missing_ok=True)
