"""How a fact of the machine is read: the text of a file or of a command, None where there is none."""

import subprocess
from collections.abc import Callable
from pathlib import Path

COMMAND_TIMEOUT_S = 5.0

ReadText = Callable[[str], str | None]
"""The content of a file, or None when it cannot be read."""


def read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def run(*command: str) -> str | None:
    """What a command prints; None when it is not there, fails, or takes longer than its time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def least(*values: int | None) -> int | None:
    """The smallest of what is known: a limit above the machine's own memory limits nothing."""
    return min((one for one in values if one is not None), default=None)
