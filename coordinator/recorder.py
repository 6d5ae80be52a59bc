"""Writes to the store behind the requests' backs: in order, in batches, again when the store was away."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from coordinator import log
from coordinator.errors import StoreDown
from coordinator.metrics import Metrics
from coordinator.store.records import Record

MAX_WAITING = 20_000
BATCH = 200
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0


class Recorder:
    """Owned by the event loop. Full: the oldest record is given up, and logged so that it can be entered by hand."""

    def __init__(self, write: Callable[[Sequence[Record]], Awaitable[None]], metrics: Metrics) -> None:
        self._write = write
        self._metrics = metrics
        self._waiting: deque[Record] = deque()
        self._something = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, record: Record) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._give_up(self._waiting.popleft(), "the store has been away for too long")
        self._waiting.append(record)
        self._note()

    async def run(self) -> None:
        """For ever."""
        retry_s = FIRST_RETRY_S
        while True:
            await self._something.wait()
            try:
                await self._write_batch()
                retry_s = FIRST_RETRY_S
            except StoreDown as error:
                log.warning("store_down", reason=str(error), waiting=len(self._waiting))
                await asyncio.sleep(retry_s)
                retry_s = min(LAST_RETRY_S, 2 * retry_s)

    async def flush(self, within_s: float) -> None:
        """Waits until all is written; what is not by then is given up."""
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            while self._waiting:
                self._give_up(self._waiting.popleft(), "the store is away at the end")

    async def _write_batch(self) -> None:
        batch = list(self._waiting)[:BATCH]
        try:
            await self._write(batch)
        except StoreDown:
            raise
        except Exception:
            await self._write_singly(batch)
        for record in batch:
            # `add` may have given up the oldest meanwhile.
            if self._waiting and self._waiting[0] is record:
                self._waiting.popleft()
        self._note()

    async def _write_singly(self, batch: list[Record]) -> None:
        """One record that the store refuses does not take the others with it."""
        for record in batch:
            try:
                await self._write([record])
            except StoreDown:
                raise
            except Exception as error:
                self._give_up(record, type(error).__name__)

    def _give_up(self, record: Record, why: str) -> None:
        self._metrics.records_lost.inc()
        log.warning("record_lost", why=why, record=repr(record))

    def _note(self) -> None:
        self._metrics.records_waiting.set(len(self._waiting))
        if self._waiting:
            self._something.set()
            self._empty.clear()
        else:
            self._something.clear()
            self._empty.set()
