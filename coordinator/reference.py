"""What the store holds and every decision reads: the tables of memory and the desired models. Last known while it is
away."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from coordinator import log
from coordinator.errors import StoreDown
from coordinator.store.records import DesiredList, MemoryTables
from provider.protocol import DesiredModels


class Source(Protocol):
    async def memory_tables(self) -> MemoryTables: ...
    async def desired(self) -> DesiredList | None: ...


class Reference:
    """Read at start and from time to time, so that Postgres is off the hot path. `publish` is given what is desired
    each time it has been read: the hub tells the higher revision from the lower."""

    def __init__(self, source: Source, publish: Callable[[DesiredModels], None]) -> None:
        self._source = source
        self._publish = publish
        self.tables = MemoryTables({}, {})
        self.desired: DesiredList | None = None

    async def read(self) -> None:
        """Raises StoreDown, and then nothing has changed."""
        tables = await self._source.memory_tables()
        desired = await self._source.desired()
        self.tables = tables
        if desired is not None:
            self.desire(desired)

    def desire(self, desired: DesiredList) -> None:
        """Of two lists the one of the higher revision stays."""
        if self.desired is None or desired.revision >= self.desired.revision:
            self.desired = desired
            self._publish(desired.message)

    async def run(self, every_s: float) -> None:
        """For ever; the boundary of each reading."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.read()
            except StoreDown as error:
                log.warning("reference_not_read", reason=str(error))
            except Exception as error:
                log.failure("reference_not_read", error)
