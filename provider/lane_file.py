"""What is kept of the choice of a model's lanes: a file for each in `lanes/` of the data directory. Without it, the
next load chooses anew.
"""

import logging
from hashlib import sha256
from pathlib import Path

import msgspec

from provider.identity import write_atomically

log = logging.getLogger(__name__)

DIRECTORY = "lanes"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice holds for, whether drafts are made or not. `device`: with the versions of what computes on it;
    `shapes`: a digest of how the weights are packed; `candidates`: the numbers of rows to choose from."""

    device: str
    shapes: str
    candidates: list[int]

    def path_in(self, directory: Path) -> Path:
        """Workers that choose for other subjects write other files."""
        return directory / f"{sha256(msgspec.json.encode(self)).hexdigest()[:16]}.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """`model` and `pass_ms`, by rows, are for people."""

    subject: Subject
    lane_rows: int
    model: str
    pass_ms: dict[str, float]


def read_rows(directory: Path, subject: Subject) -> int | None:
    """None, and a warning, for a file that cannot be used."""
    path = subject.path_in(directory)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("lane_file_unusable path=%s error=%s", path, error)
        return None
    if found.subject == subject and found.lane_rows in subject.candidates:
        return found.lane_rows
    log.warning("lane_file_unusable path=%s error=it holds for something else", path)
    return None


def keep_rows(directory: Path, kept: Kept) -> None:
    """Where that cannot be done, a warning: the next load may choose otherwise."""
    path = kept.subject.path_in(directory)
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(kept), indent=1).decode())
    except OSError as error:
        log.warning("lane_file_not_written path=%s error=%s", path, error)
