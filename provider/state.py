"""The daemon-state file: what a running provider says about itself, for `provider status` and doctor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from provider.identity import write_atomically
from provider.liveness import lives

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


def remove_state(data_dir: Path) -> None:
    path_in(data_dir).unlink(missing_ok=True)
