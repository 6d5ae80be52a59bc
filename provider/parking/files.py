"""Park files: named after the process that wrote them, checked when read, and gone with it or at the next start."""

import logging
import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import psutil

from provider.liveness import lives

log = logging.getLogger(__name__)

DIRECTORY = "park"
"""Within the data directory."""
NAME = re.compile(r"(\d+)-(\d+)-\d+(\.part)?\.safetensors")
HASHED_BYTES = 2**20


class BadCopy(Exception):
    """What was read is not what was written."""


@dataclass(frozen=True, slots=True)
class Written:
    """`digest`: BLAKE2b of the whole file, kept in memory only: a file that answers to it is ours and whole."""

    path: Path
    digest: bytes
    size_bytes: int

    def check(self) -> None:
        """Raises BadCopy, or OSError for a file that cannot be read."""
        if digest(self.path) != self.digest:
            raise BadCopy(f"{self.path.name} is not what was written")


class ParkFiles:
    """Owner of the files of this process in `directory`, which several processes may share."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where it cannot be made."""
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)  # it holds what people have written
        own = psutil.Process()
        self._prefix = f"{own.pid}-{_millis(own)}-"
        self._count = 0

    def new(self) -> Path:
        """A name to write under; `finish` gives the file its own."""
        self._count += 1
        return self._directory / f"{self._prefix}{self._count}.part.safetensors"

    def finish(self, part: Path) -> Written:
        path = part.with_name(part.name.replace(".part", ""))
        written = Written(path, digest(part), part.stat().st_size)
        part.rename(path)
        return written

    def others_bytes(self) -> int:
        """What other processes' files take."""
        return sum(_size(one) for one in _park_files(self._directory) if not one.name.startswith(self._prefix))

    def remove_all(self) -> None:
        for one in _park_files(self._directory):
            if one.name.startswith(self._prefix):
                one.unlink(missing_ok=True)


def digest(path: Path) -> bytes:
    found = blake2b(digest_size=16)
    with path.open("rb") as file:
        while data := file.read(HASHED_BYTES):
            found.update(data)
    return found.digest()


def sweep(directory: Path) -> int:
    """Removes the park files of processes that have ended, and nothing else; how many there were."""
    removed = 0
    for one in _park_files(directory):
        found = NAME.fullmatch(one.name)
        if found is not None and not lives(int(found[1]), int(found[2]) / 1000):
            one.unlink(missing_ok=True)
            removed += 1
    if removed:
        log.info("park_files_removed count=%d", removed)
    return removed


def _park_files(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [Path(one.path) for one in entries if NAME.fullmatch(one.name) and one.is_file()]
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _millis(process: psutil.Process) -> int:
    return int(process.create_time() * 1000)
