"""Records on this machine's disk until they are in the store, so that neither a crash of this process nor of Postgres
loses one (docs/decisions/0014-journal.md).

A journal is a directory of segments: files of one JSON line for each record, appended in order, read back in order and
removed once all of theirs is stored. A killed process leaves its journal behind, and whoever finds its lock free
carries on with it. Storing a record twice changes nothing, so no place in a file needs to be remembered.
"""

import fcntl
import os
import shutil
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from coordinator import log
from coordinator.errors import BadConfiguration
from coordinator.lines import Draft, Line, NoLine, decoded, encoded
from coordinator.store.records import Record, Usage

DIRECTORY = "journal"
SUFFIX = ".journal"
LOCK = "lock"
SEGMENT_BYTES = 4 * 2**20
MOST_BYTES = 2**30
"""Of one journal: some two million jobs. Beyond that, records wait in memory."""
MOST_IN_MEMORY = 20_000


@dataclass(frozen=True, slots=True)
class Batch:
    """The next records, and where the reading goes on once they are stored. `segment` None: they are in no file."""

    records: list[Record]
    segment: Path | None = None
    offset: int = 0


class Journal:
    """Owned by the event loop. `waiting` counts the jobs whose usage was appended and is not stored yet, which that a
    key or a provider was seen is not."""

    def __init__(self, directory: Path, lock: IO[bytes], mine: bool) -> None:
        """`mine`: it is being written. Otherwise what it holds is all there will be."""
        self._directory = directory
        self._lock = lock
        self._mine = mine
        self._segments = deque(sorted(directory.glob("*.log")))
        self._bytes = sum(path.stat().st_size for path in self._segments)
        self._offset = 0
        self._drafts: dict[str, Usage] = {}
        """Of jobs that have not ended: as last appended or, where the journal was left behind, as last read."""
        self._unwritten: deque[tuple[Record, bytes]] = deque()
        self._file: IO[bytes] | None = None
        self._size = 0
        self._unsynced: list[int] = []
        self._dirty = False
        self.waiting = 0

    # -- writing

    def append(self, line: Record | Draft) -> Record | None:
        """What the disk does not take waits in memory. What is given up for want of room is returned.

        Raises ValueError for what cannot be written down at all.
        """
        raw = encoded(line)
        if isinstance(line, Draft):
            self._drafts[line.usage.job_id] = line.usage
            self._write(raw)
            return None
        if isinstance(line, Usage):
            self._drafts.pop(line.job_id, None)
        self.waiting += _jobs(line)
        self._unwritten.append((line, raw))
        while self._unwritten and self._write(self._unwritten[0][1]):
            self._unwritten.popleft()
        if len(self._unwritten) <= MOST_IN_MEMORY:
            return None
        given_up, _ = self._unwritten.popleft()
        self.waiting -= _jobs(given_up)
        return given_up

    def unsynced(self) -> list[int]:
        """Descriptors for `sync`, which closes them."""
        files, self._unsynced = self._unsynced, []
        if self._file is not None and self._dirty:
            files.append(os.dup(self._file.fileno()))
        self._dirty = False
        return files

    def _write(self, line: bytes) -> bool:
        """False when the disk does not take it; then nothing of it is there."""
        try:
            if self._file is None or self._size >= SEGMENT_BYTES:
                self._begin_segment()
            self._put(line)
        except OSError as error:
            log.warning("journal_not_written", reason=str(error), waiting=self.waiting)
            return False
        return True

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        if self._bytes + len(data) > MOST_BYTES:
            raise OSError("the journal has its full size")
        try:
            if self._file.write(data) != len(data):
                raise OSError("the disk is full")
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(data)
        self._bytes += len(data)
        self._dirty = True

    def _begin_segment(self) -> None:
        """It repeats what is known of the jobs that have not ended, for the segments before will be removed. A full
        disk leaves things as they were."""
        number = 1 + (int(self._segments[-1].stem) if self._segments else 0)
        path = self._directory / f"{number:08}.log"
        former, former_size = self._file, self._size
        self._file, self._size = path.open("ab", buffering=0), 0
        try:
            self._put(b"".join(encoded(Draft(usage)) for usage in self._drafts.values()))
        except OSError:
            self._file.close()
            path.unlink()
            self._file, self._size = former, former_size
            raise
        self._segments.append(path)
        if former is not None:
            self._unsynced.append(os.dup(former.fileno()))
            former.close()

    # -- reading back

    def read(self, limit: int) -> Batch | None:
        """The next records in order; None when there are none now, or of a journal left behind, none any more."""
        while self._segments:
            batch = self._read_from(self._segments[0], limit)
            if batch.records:
                return batch
            self._offset = batch.offset
            if self._mine and len(self._segments) == 1:
                break
            self._remove_first()
        rest = (record for record, _ in self._unwritten) if self._mine else iter(self._drafts.values())
        records: list[Record] = list(islice(rest, limit))
        return Batch(records) if records else None

    def stored(self, batch: Batch) -> None:
        """What was read last need not be read again."""
        if batch.segment is not None:
            self._offset = batch.offset
        elif self._mine:
            for record in batch.records:
                # Some may have been written after all, or given up, meanwhile.
                if self._unwritten and self._unwritten[0][0] is record:
                    self._unwritten.popleft()
        else:
            self._drafts = dict(islice(self._drafts.items(), len(batch.records), None))
        self.waiting = max(0, self.waiting - _jobs(*batch.records))

    def _read_from(self, path: Path, limit: int) -> Batch:
        records: list[Record] = []
        offset = self._offset
        with path.open("rb") as file:
            file.seek(offset)
            for raw in file:
                offset += len(raw)
                line = _line(raw, path)
                if isinstance(line, Draft):
                    self._note_draft(line.usage)
                elif line is not None:
                    records.append(line)
                    self._note_end(line)
                if len(records) >= limit:
                    break
        return Batch(records, path, offset)

    def _note_draft(self, usage: Usage) -> None:
        """Of a journal left behind, the last that was known of a job is what it is billed by."""
        if not self._mine:
            self._drafts[usage.job_id] = usage

    def _note_end(self, record: Record) -> None:
        if not self._mine and isinstance(record, Usage):
            self._drafts.pop(record.job_id, None)

    def _remove_first(self) -> None:
        path = self._segments.popleft()
        self._bytes -= path.stat().st_size
        self._offset = 0
        path.unlink()

    # -- its end

    def close(self) -> None:
        """What is not stored stays for whoever finds it; a journal with nothing more in it is removed."""
        sync(self.unsynced())
        if self._file is not None:
            self._file.close()
        if self.read(1) is None and not self._drafts:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._lock.close()


def _jobs(*records: Record) -> int:
    return sum(isinstance(record, Usage) for record in records)


def sync(files: Iterable[int]) -> None:
    """A crash of the machine loses nothing of what was appended to them before. Closes them. Blocks."""
    for file in files:
        try:
            os.fsync(file)
        except OSError as error:
            log.warning("journal_not_synced", reason=str(error))
        finally:
            os.close(file)


def begun(data_dir: Path) -> Journal:
    """A new journal, of this process. Raises BadConfiguration."""
    directory = data_dir / DIRECTORY / uuid.uuid4().hex
    try:
        directory.mkdir(mode=0o700, parents=True)
        lock = (directory / LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Locked before it can be found.
        directory = directory.rename(directory.with_suffix(SUFFIX))
    except OSError as error:
        raise BadConfiguration(
            f"--data-dir {data_dir} cannot be written to ({error.strerror}): usage is kept there until it is stored."
        ) from error
    return Journal(directory, lock, mine=True)


def left_behind(data_dir: Path) -> Iterator[Journal]:
    """The journals of processes that have ended, each for one finder alone."""
    for directory in sorted((data_dir / DIRECTORY).glob(f"*{SUFFIX}")):
        with suppress(OSError), ExitStack() as stack:
            lock = stack.enter_context((directory / LOCK).open("rb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            journal = Journal(directory, lock, mine=False)
            stack.pop_all()
            yield journal


def _line(raw: bytes, path: Path) -> Line | None:
    """A machine that crashed may have torn the last line."""
    try:
        return decoded(raw)
    except NoLine as error:
        log.warning("journal_line_unreadable", file=path.name, reason=str(error)[:200], line=repr(raw[:2000]))
        return None
