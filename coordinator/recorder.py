"""Writes to the store behind the requests' backs: in order, in batches, again when the store was away.

What is added is on this machine's disk before the adding returns (coordinator.journal), so that a killed process loses
none of it; whoever starts next with the same data directory, or runs beside it, stores what was left behind.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from coordinator import journal, log
from coordinator.errors import StoreDown
from coordinator.journal import Batch, Journal
from coordinator.lines import Draft
from coordinator.metrics import Metrics
from coordinator.store.records import Record, Usage

BATCH = 200
GATHER_S = 0.1
"""After the first of some records, for more to come: a transaction costs ten times what a row does."""
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
SYNC_EVERY_S = 0.5
"""What a crash of the whole machine may lose."""
FIND_EVERY_S = 10.0
"""How long the journal of a process that died beside this one may lie."""

Write = Callable[[Sequence[Record]], Awaitable[None]]


class Recorder:
    """Owned by the event loop. `find` yields the journals that were left behind, each once."""

    def __init__(
        self, write: Write, metrics: Metrics, mine: Journal, find: Callable[[], Iterable[Journal]] = tuple
    ) -> None:
        self._write = write
        self._metrics = metrics
        self._mine = mine
        self._find = find
        self._found: list[Journal] = []
        self._something = asyncio.Event()
        self._something.set()
        self._empty = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Jobs of this process whose usage is not stored yet."""
        return self._mine.waiting

    def add(self, record: Record) -> None:
        self._append(record)
        self._something.set()
        self._empty.clear()
        self._metrics.records_waiting.set(self._mine.waiting)

    def draft(self, usage: Usage) -> None:
        """Of a job that has not ended: it is stored only if this process ends before the job does."""
        self._append(Draft(usage))

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sync())
            tasks.create_task(self._store())

    async def flush(self, within_s: float) -> None:
        """Waits until all is stored; what is not by then stays on the disk."""
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            log.warning("records_kept", why="the store is away at the end", waiting=self._mine.waiting)

    def close(self) -> None:
        for one in (*self._found, self._mine):
            one.close()

    async def _sync(self) -> None:
        """For ever; the boundary of each syncing."""
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            try:
                await asyncio.to_thread(journal.sync, self._mine.unsynced())
            except OSError as error:
                log.warning("journal_not_synced", reason=str(error))

    async def _store(self) -> None:
        """For ever; the boundary of each storing."""
        retry_s = FIRST_RETRY_S
        find_s = 0.0
        while True:
            if time.monotonic() >= find_s:
                find_s = time.monotonic() + FIND_EVERY_S
                self._find_more()
            try:
                if not await self._store_batch():
                    await self._rest(find_s - time.monotonic())
                    await asyncio.sleep(GATHER_S)
                retry_s = FIRST_RETRY_S
            except StoreDown as error:
                log.warning("store_down", reason=str(error), waiting=self._mine.waiting)
                await asyncio.sleep(retry_s)
                retry_s = min(LAST_RETRY_S, 2 * retry_s)
            except Exception as error:
                log.failure("records_not_stored", error, waiting=self._mine.waiting)
                await asyncio.sleep(LAST_RETRY_S)

    def _find_more(self) -> None:
        for one in self._find():
            log.event("journal_found")
            self._found.append(one)

    async def _rest(self, for_s: float) -> None:
        self._something.clear()
        self._empty.set()
        try:
            async with asyncio.timeout(for_s):
                await self._something.wait()
        except TimeoutError:
            pass

    async def _store_batch(self) -> bool:
        """False when there was none: those that were left behind first, for they are older."""
        while self._found:
            batch = self._found[0].read(BATCH)
            if batch is not None:
                await self._write_batch(self._found[0], batch)
                return True
            self._found.pop(0).close()
        batch = self._mine.read(BATCH)
        if batch is None:
            return False
        await self._write_batch(self._mine, batch)
        self._metrics.records_waiting.set(self._mine.waiting)
        return True

    async def _write_batch(self, source: Journal, batch: Batch) -> None:
        try:
            await self._write(batch.records)
        except StoreDown:
            raise
        except Exception:
            await self._write_singly(batch.records)
        source.stored(batch)

    async def _write_singly(self, records: list[Record]) -> None:
        """One record that the store refuses does not take the others with it."""
        for record in records:
            try:
                await self._write([record])
            except StoreDown:
                raise
            except Exception as error:
                self._give_up(record, type(error).__name__)

    def _append(self, line: Record | Draft) -> None:
        try:
            given_up = self._mine.append(line)
        except ValueError as error:
            self._give_up(line, str(error))
        else:
            if given_up is not None:
                self._give_up(given_up, "the disk and the store have been away for too long")

    def _give_up(self, record: Record | Draft, why: str) -> None:
        """Logged whole, so that it can be entered by hand."""
        self._metrics.records_lost.inc()
        log.warning("record_lost", why=why, record=repr(record))
