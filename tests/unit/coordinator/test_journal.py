"""Journals on a real disk: what is appended is read back in order, whatever dies in between."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import journal
from coordinator.errors import BadConfiguration
from coordinator.journal import Journal
from coordinator.lines import Draft, NoLine, decoded, encoded
from coordinator.store.records import JobOutcome, Record, Sighting, Touch, Usage
from tests.soak import examples

NOW = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=UTC)
USAGE = Usage(
    job_id="j",
    token_id=1,
    endpoint="/v1/completions",
    model="demo",
    provider_id=None,
    attempts=1,
    outcome=JobOutcome.FAILED,
    code='odd "code"\n',
    prompt_tokens=None,
    completion_tokens=3,
    chunks=3,
    parks=0,
    recomputes=0,
    started_at=NOW,
    finished_at=NOW,
)


def usage(number: int) -> Usage:
    return replace(USAGE, job_id=f"j{number}")


def drained(source: Journal, limit: int = 3) -> list[Record]:
    found: list[Record] = []
    while (batch := source.read(limit)) is not None:
        assert 0 < len(batch.records) <= limit
        found += batch.records
        source.stored(batch)
    return found


def killed(mine: Journal) -> None:
    """As the end of its process would leave it: the lock is free, and nothing was tidied."""
    for descriptor in mine.unsynced():
        os.close(descriptor)
    if mine._file is not None:
        mine._file.close()
    mine._lock.close()


def only(found: list[Journal]) -> Journal:
    (one,) = found
    return one


def test_every_line_comes_back_as_it_was() -> None:
    lines = [USAGE, Draft(USAGE), Sighting("p", "Zoë", "0.9.0", "sim", "chip", NOW), Touch(7, NOW)]
    for line in lines:
        assert decoded(encoded(line)) == line
        assert encoded(line).count(b"\n") == 1
    for bad in (b"", b"{", b"null", b'{"kind":"usage"}', b'{"kind":"x","record":{}}', encoded(USAGE)[:-9], b"\xff\n"):
        with pytest.raises(NoLine):
            decoded(bad)


def test_records_are_read_back_in_order_and_an_empty_journal_leaves_nothing(tmp_path: Path) -> None:
    mine = journal.begun(tmp_path)
    records = [usage(number) for number in range(10)]
    for one in records:
        assert mine.append(one) is None
    assert mine.waiting == 10
    assert drained(mine) == records
    assert mine.waiting == 0
    assert mine.append(usage(11)) is None
    assert drained(mine) == [usage(11)]
    mine.close()
    assert list((tmp_path / journal.DIRECTORY).iterdir()) == []


def test_that_a_key_or_a_provider_was_seen_is_not_counted_as_usage_that_waits(tmp_path: Path) -> None:
    mine = journal.begun(tmp_path)
    for one in (Touch(7, NOW), usage(1), Sighting("p", "p", "0.9.0", "sim", "chip", NOW), usage(2)):
        mine.append(one)
    assert mine.waiting == 2
    for left in (1, 0):
        batch = mine.read(2)
        assert batch is not None
        mine.stored(batch)
        assert mine.waiting == left
    mine.close()


def test_what_is_not_stored_is_found_by_one_successor(tmp_path: Path) -> None:
    mine = journal.begun(tmp_path)
    for number in range(5):
        mine.append(usage(number))
    batch = mine.read(2)
    assert batch is not None
    mine.stored(batch)
    assert list(journal.left_behind(tmp_path)) == []
    mine.close()
    found = only(list(journal.left_behind(tmp_path)))
    assert list(journal.left_behind(tmp_path)) == []
    assert drained(found) == [usage(number) for number in range(5)]
    found.close()
    assert list(journal.left_behind(tmp_path)) == []


def test_a_job_that_never_ended_is_billed_by_its_last_draft(tmp_path: Path) -> None:
    mine = journal.begun(tmp_path)
    mine.append(Draft(usage(1)))
    mine.append(Draft(usage(2)))
    mine.append(Draft(replace(usage(1), completion_tokens=50)))
    mine.append(usage(2))
    assert drained(mine) == [usage(2)]
    killed(mine)
    found = only(list(journal.left_behind(tmp_path)))
    assert drained(found, 1) == [usage(2), replace(usage(1), completion_tokens=50)]
    found.close()
    assert list((tmp_path / journal.DIRECTORY).iterdir()) == []


def test_drafts_outlive_the_segments_they_were_written_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1000)
    mine = journal.begun(tmp_path)
    mine.append(Draft(usage(0)))
    for number in range(1, 50):
        mine.append(usage(number))
        drained(mine)
    files = list(tmp_path.rglob("*.log"))
    assert len(files) == 1
    assert files[0].stem > "00000005"
    killed(mine)
    found = only(list(journal.left_behind(tmp_path)))
    assert usage(0) in drained(found)
    found.close()


def test_a_torn_last_line_takes_nothing_else_with_it(tmp_path: Path) -> None:
    mine = journal.begun(tmp_path)
    for number in range(3):
        mine.append(usage(number))
    killed(mine)
    (file,) = tmp_path.rglob("*.log")
    file.write_bytes(file.read_bytes()[:-20])
    found = only(list(journal.left_behind(tmp_path)))
    assert drained(found) == [usage(0), usage(1)]
    found.close()


class FullDisk:
    """A file that takes so many bytes more."""

    def __init__(self, file: object, room: int) -> None:
        self.file = file
        self.room = room

    def write(self, data: bytes) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        self.file.write(taken)  # type: ignore[attr-defined]
        return len(taken)

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_what_a_full_disk_does_not_take_waits_in_memory(tmp_path: Path) -> None:
    mine = journal.begun(tmp_path)
    mine.append(usage(0))
    mine._file = full = FullDisk(mine._file, len(encoded(usage(1))) + 10)  # type: ignore[assignment]
    for number in (1, 2, 3):
        assert mine.append(usage(number)) is None
    assert mine.waiting == 4
    batch = mine.read(10)
    assert batch is not None
    assert batch.records == [usage(0), usage(1)]
    mine.stored(batch)
    assert drained(mine, 1) == [usage(2), usage(3)]
    mine.append(usage(4))
    full.room = 10**6  # type: ignore[attr-defined]
    mine.append(usage(5))
    assert len(mine._unwritten) == 0
    assert drained(mine) == [usage(4), usage(5)]
    assert mine.waiting == 0
    mine.close()


def test_a_segment_that_cannot_be_begun_leaves_the_drafts_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1)
    mine = journal.begun(tmp_path)
    mine.append(Draft(usage(0)))
    for number in (1, 2):
        mine.append(usage(number))
    with monkeypatch.context() as full:
        full.setattr(journal, "MOST_BYTES", mine._bytes + 10)
        mine.append(usage(3))
        assert drained(mine) == [usage(1), usage(2), usage(3)]
        assert len(list(tmp_path.rglob("*.log"))) == 1
    mine.append(usage(4))
    assert drained(mine) == [usage(4)]
    assert [file.stem for file in tmp_path.rglob("*.log")] == ["00000004"]
    killed(mine)
    found = only(list(journal.left_behind(tmp_path)))
    assert drained(found) == [usage(4), usage(0)]
    found.close()


def test_beyond_its_bounds_the_oldest_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 100)
    monkeypatch.setattr(journal, "MOST_IN_MEMORY", 2)
    mine = journal.begun(tmp_path)
    assert [mine.append(usage(number)) for number in range(4)] == [None, None, usage(0), usage(1)]
    assert mine.waiting == 2
    assert drained(mine) == [usage(2), usage(3)]
    mine.close()


def test_a_directory_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / journal.DIRECTORY).write_text("a file")
    with pytest.raises(BadConfiguration, match="--data-dir"):
        journal.begun(tmp_path)


class Processes:
    """One after another over one directory, and the store that they write to."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.mine = journal.begun(where)
        self.stored: dict[str, Usage] = {}

    def store(self, records: list[Record]) -> None:
        for one in records:
            assert isinstance(one, Usage)
            self.stored.setdefault(one.job_id, one)

    def read(self, limit: int, store: bool) -> None:
        batch = self.mine.read(limit)
        if batch is not None and store:
            self.store(batch.records)
            self.mine.stored(batch)

    def die(self) -> None:
        killed(self.mine)
        for found in journal.left_behind(self.where):
            self.store(drained(found))
            found.close()


@settings(max_examples=examples(2500))
@given(data=st.data(), segment_bytes=st.sampled_from([300, 1500, 10**6]))
def test_nothing_is_lost_and_order_is_kept_whenever_a_process_dies(
    data: st.DataObject, segment_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Appends, drafts, reads that are stored or not, deaths: in the end every ended job was stored as it ended, every
    other as it was last drafted, and those that ended in their order."""
    world = Processes(tmp_path_factory.mktemp("journals"))
    ended: dict[str, Usage] = {}
    drafted: dict[str, Usage] = {}
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal, "SEGMENT_BYTES", segment_bytes)
            for number in range(data.draw(st.integers(1, 40))):
                what = data.draw(st.sampled_from(["end", "end", "draft", "draft", "read", "fail", "die"]))
                job = data.draw(st.sampled_from([*sorted(drafted), f"j{number}"]))
                if what == "end":
                    drafted.pop(job, None)
                    ended[job] = replace(USAGE, job_id=job, completion_tokens=number)
                    world.mine.append(ended[job])
                elif what == "draft":
                    drafted[job] = replace(USAGE, job_id=job, completion_tokens=1000 + number)
                    world.mine.append(Draft(drafted[job]))
                elif what == "die":
                    world.die()
                    ended |= drafted
                    drafted.clear()
                    world.mine = journal.begun(world.where)
                else:
                    world.read(data.draw(st.integers(1, 5)), store=what == "read")
    finally:
        world.die()
    assert world.stored == ended | drafted
    assert list((world.where / journal.DIRECTORY).iterdir()) == []
    finals = [one for one in world.stored.values() if (one.completion_tokens or 0) < 1000]
    assert finals == sorted(finals, key=lambda one: one.completion_tokens or 0)
