"""What is recorded reaches a store that comes and goes."""

import asyncio
import glob
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator import journal, recorder
from coordinator.accounts import Accounts
from coordinator.errors import StoreDown
from coordinator.job import Job, Progress
from coordinator.limits import RateLimits
from coordinator.metrics import Metrics
from coordinator.recorder import Recorder
from coordinator.store.records import JobOutcome, Record, Usage
from provider.protocol import InferenceChunk
from tests.unit.coordinator.test_journal import NOW, killed, usage


def word(text: str) -> InferenceChunk:
    return InferenceChunk(request_id="j.1", seq=0, data={"choices": [{"delta": {"content": text}}]})


class Rows:
    """A store that the test takes away. It refuses `bad` by itself."""

    def __init__(self) -> None:
        self.down = False
        self.bad: Record | None = None
        self.stored: list[Record] = []
        self.changed = asyncio.Event()

    async def write(self, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise StoreDown("away")
        if self.bad in records:
            raise ValueError("refused")
        self.stored += [one for one in records if one not in self.stored]
        self.changed.set()

    async def until_stored(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.stored) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(recorder, "LAST_RETRY_S", 0.002)
    monkeypatch.setattr(recorder, "SYNC_EVERY_S", 0.001)
    monkeypatch.setattr(recorder, "FIND_EVERY_S", 0.001)


def made(rows: Rows, where: Path) -> Recorder:
    return Recorder(rows.write, Metrics(dict), journal.begun(where), lambda: journal.left_behind(where))


@asynccontextmanager
async def running(one: Recorder) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(one.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def test_what_comes_while_the_store_is_away_is_stored_later_in_order(tmp_path: Path) -> None:
    rows = Rows()

    async def scene() -> None:
        one = made(rows, tmp_path)
        async with running(one):
            one.add(usage(0))
            await one.flush(10)
            rows.down = True
            for number in range(1, 500):
                one.add(usage(number))
            await asyncio.sleep(0.01)
            assert len(rows.stored) == 1
            rows.down = False
            await one.flush(10)
        one.close()

    asyncio.run(scene())
    assert rows.stored == [usage(number) for number in range(500)]
    assert not list(tmp_path.rglob("*.log"))


def test_a_store_that_is_away_at_the_end_gets_it_from_the_next_process(tmp_path: Path) -> None:
    rows = Rows()
    rows.down = True

    async def scene() -> None:
        one = made(rows, tmp_path)
        async with running(one):
            one.add(usage(1))
            await one.flush(0.01)
        one.close()
        assert rows.stored == []
        rows.down = False
        successor = made(rows, tmp_path)
        async with running(successor):
            await rows.until_stored(1)
            await successor.flush(10)
        successor.close()

    asyncio.run(scene())
    assert rows.stored == [usage(1)]
    assert not list(tmp_path.rglob("*.log"))


def test_one_that_runs_beside_a_process_that_dies_stores_what_it_left(tmp_path: Path) -> None:
    rows = Rows()

    async def scene() -> None:
        mine = journal.begun(tmp_path)
        mine.append(usage(1))
        beside = made(rows, tmp_path)
        async with running(beside):
            await asyncio.sleep(0.02)
            assert rows.stored == []
            killed(mine)
            await rows.until_stored(1)
        beside.close()

    asyncio.run(scene())


def test_a_record_that_the_store_refuses_is_given_up_alone(tmp_path: Path) -> None:
    rows = Rows()
    rows.bad = usage(1)

    async def scene() -> float:
        one = made(rows, tmp_path)
        for number in range(3):
            one.add(usage(number))
        async with running(one):
            await one.flush(10)
        one.close()
        return one._metrics.records_lost._value.get()  # type: ignore[no-any-return]

    assert asyncio.run(scene()) == 1
    assert rows.stored == [usage(0), usage(2)]


def test_a_fault_of_the_disk_does_not_end_the_recording(tmp_path: Path) -> None:
    rows = Rows()

    async def scene() -> None:
        one = made(rows, tmp_path)
        async with running(one) as task:
            one.add(usage(1))
            (file,) = glob.glob(f"{tmp_path}/**/*.log", recursive=True)
            os.rename(file, f"{file}.away")
            await asyncio.sleep(0.02)
            assert not task.done()
            os.rename(f"{file}.away", file)
            await rows.until_stored(1)
        one.close()

    asyncio.run(scene())


def test_a_job_is_billed_as_it_stood_when_its_coordinator_was_killed(tmp_path: Path) -> None:
    rows = Rows()
    job = Job("a", 1, "/v1/chat/completions", "demo", True, {}, NOW)

    async def scene() -> None:
        mine = journal.begun(tmp_path)
        accounts = Accounts(Recorder(rows.write, Metrics(dict), mine), RateLimits(lambda: 0.0), lambda: NOW)
        progress = Progress(attempts=1, provider_id="p1")
        accounts.sent(job, progress)
        for _ in range(3):
            progress.delivered(word("word"))
        accounts.checkpoint()
        progress.delivered(word("unbilled"))
        other = Progress(attempts=1, provider_id="p2")
        ended = Job("b", 1, "/v1/chat/completions", "demo", True, {}, NOW)
        accounts.sent(ended, other)
        accounts.ended(other.bill(ended, None, NOW))
        killed(mine)
        successor = made(rows, tmp_path)
        async with running(successor):
            await rows.until_stored(2)
        successor.close()

    asyncio.run(scene())
    one, lost = rows.stored
    assert isinstance(one, Usage)
    assert isinstance(lost, Usage)
    assert (one.job_id, one.outcome, one.code) == ("b", JobOutcome.CANCELLED, None)
    assert (lost.job_id, lost.outcome, lost.code) == ("a", JobOutcome.FAILED, "coordinator_lost")
    assert (lost.provider_id, lost.chunks, lost.completion_tokens) == ("p1", 3, 3)
