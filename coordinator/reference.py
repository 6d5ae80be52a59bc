"""What the store holds and every decision reads: the tables of memory and the desired models. Last known while it is
away."""

from collections.abc import Callable
from typing import Protocol

from coordinator import log
from coordinator.endless import again
from coordinator.errors import StoreDown
from coordinator.store.records import DesiredList, MemoryTables
from provider.protocol import DesiredModels

FIRST_TRIES = 4


class Source(Protocol):
    async def memory_tables(self) -> MemoryTables: ...
    async def desired(self) -> DesiredList | None: ...
    async def drains(self) -> frozenset[str]: ...


class Reference:
    """Read at start and from time to time, so that Postgres is off the hot path. `publish` is given what is desired
    each time it has been read: the hub tells the higher revision from the lower."""

    def __init__(
        self,
        source: Source,
        publish: Callable[[DesiredModels], None],
        drain: Callable[[frozenset[str]], None] = lambda _: None,
    ) -> None:
        """`drain` is given the ids of all providers that are to drain."""
        self._source = source
        self._publish = publish
        self._drain = drain
        self._drains: frozenset[str] = frozenset()
        self._drains_ordered = 0
        self.tables = MemoryTables({}, {})
        self.desired: DesiredList | None = None

    async def read(self) -> None:
        """Raises StoreDown, and then nothing has changed."""
        tables = await self._source.memory_tables()
        desired = await self._source.desired()
        before = self._drains_ordered
        drains = await self._source.drains()
        self.tables = tables
        if desired is not None:
            self.desire(desired)
        if before == self._drains_ordered:  # else what was read may be older than what was ordered here meanwhile
            self._set_drains(drains)

    async def read_first(self) -> None:
        """As `read`; a store that has only just been started, or is slow, is asked again."""
        for left in reversed(range(FIRST_TRIES)):
            try:
                await self.read()
                return
            except StoreDown as error:
                if not left:
                    raise
                log.warning("reference_not_read", reason=str(error))

    def desire(self, desired: DesiredList) -> None:
        """Of two lists the one of the higher revision stays."""
        if self.desired is None or desired.revision >= self.desired.revision:
            self.desired = desired
            self._publish(desired.message)

    def drained(self, provider_id: str, drain: bool) -> None:
        """An order that has just been stored."""
        self._drains_ordered += 1
        self._set_drains(self._drains | {provider_id} if drain else self._drains - {provider_id})

    def _set_drains(self, drains: frozenset[str]) -> None:
        self._drains = drains
        self._drain(drains)

    async def run(self, every_s: float) -> None:
        """For ever."""
        await again(every_s, self._read_if_there, "reference_not_read")

    async def _read_if_there(self) -> None:
        try:
            await self.read()
        except StoreDown as error:
            log.warning("reference_not_read", reason=str(error))
