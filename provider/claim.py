"""A data directory is claimed by one `up` at a time, and its claim outlasts it for as long as what it has started.

The claim is a lock on a file that the parts of the system inherit: the kernel frees it when the last of them has ended,
however that was. The file names the `up`, as long as that is not about to end.
"""

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from provider.errors import ConfigError
from provider.liveness import lives

FILE_NAME = "up.lock"
WAIT_S = 30.0
"""For what an earlier one has started: it may have answers under way, which have 20 s."""
POLL_S = 0.05


class Claim:
    def __init__(self, file: IO[str]) -> None:
        self._file = file
        me = psutil.Process()
        self._tell(json.dumps({"pid": me.pid, "started_at": me.create_time()}))

    def fileno(self) -> int:
        """For the processes that shall hold the claim too."""
        return self._file.fileno()

    def ending(self) -> None:
        """From now on it is worth waiting for."""
        self._tell("")

    def _tell(self, text: str) -> None:
        self._file.truncate(0)
        self._file.write(text)
        self._file.flush()


@contextlib.contextmanager
def claimed(data_dir: Path, wait_s: float = WAIT_S) -> Iterator[Claim]:
    """Waits while what an earlier `up` has started ends. Raises ConfigError: at once where that one runs."""
    with (data_dir / FILE_NAME).open("a+") as file:
        deadline = time.monotonic() + wait_s
        told = False
        while not _locked(file):
            _refuse_beside(file, data_dir)
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"what an earlier `up` of {data_dir} has started has not ended in {wait_s:.0f} s: "
                    "try again in a while, or pass another --data-dir."
                )
            if not told:
                print("Waiting for the parts of an earlier `up` to end.", flush=True)
            told = True
            time.sleep(POLL_S)
        yield Claim(file)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_beside(file: IO[str], data_dir: Path) -> None:
    """Raises ConfigError where the `up` that holds the claim runs, and is not about to end."""
    file.seek(0)
    try:
        told = json.loads(file.read())
        pid, started_at = int(told["pid"]), float(told["started_at"])
    except (ValueError, KeyError, TypeError):
        return
    if lives(pid, started_at):
        raise ConfigError(
            f"`up` is already running on {data_dir} (pid {pid}): end it with Ctrl-C, or pass another --data-dir."
        )
