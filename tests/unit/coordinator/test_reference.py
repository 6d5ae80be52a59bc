import asyncio

import pytest

from coordinator.errors import StoreDown
from coordinator.reference import FIRST_TRIES, Reference
from coordinator.store.records import DesiredList, MemoryTables
from provider.protocol import DesiredModels
from tests.unit.coordinator.views import TABLES


class Source:
    """A store that the test takes away and changes."""

    def __init__(self) -> None:
        self.tables = TABLES
        self.listed: DesiredList | None = None
        self.error: Exception | None = None
        self.draining: frozenset[str] = frozenset()
        self.reads = 0

    async def memory_tables(self) -> MemoryTables:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.tables

    async def desired(self) -> DesiredList | None:
        return self.listed

    async def drains(self) -> frozenset[str]:
        draining = self.draining
        await asyncio.sleep(0)
        return draining


def test_what_was_read_last_stays_while_the_store_is_away() -> None:
    source, published = Source(), list[DesiredModels]()
    reference = Reference(source, published.append)

    async def scene() -> None:
        await reference.read()
        assert (reference.tables, published) == (TABLES, [])
        source.tables, source.listed = MemoryTables({}, {}), DesiredList(3, ())
        source.error = StoreDown("away")
        with pytest.raises(StoreDown):
            await reference.read()
        assert (reference.tables, published) == (TABLES, [])
        source.error = None
        await reference.read()
        assert (reference.tables, published) == (source.tables, [source.listed.message])
        assert reference.desired == source.listed
        reference.desire(DesiredList(2, ()))
        assert reference.desired == source.listed

    asyncio.run(scene())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("error", [StoreDown("away"), RuntimeError("a table is missing")])
def test_reading_goes_on_after_any_failure(error: Exception) -> None:
    source = Source()

    async def scene() -> None:
        reference = Reference(source, lambda desired: None)
        source.error = error
        running = asyncio.create_task(reference.run(every_s=0))
        await turns()
        assert source.reads > 2
        assert reference.tables == MemoryTables({}, {})
        source.error = None
        await turns()
        assert reference.tables == TABLES
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()

    asyncio.run(scene())


def test_an_order_to_drain_is_not_undone_by_a_reading_that_began_before_it() -> None:
    source, told = Source(), list[frozenset[str]]()
    reference = Reference(source, lambda _: None, told.append)

    async def scene() -> None:
        reading = asyncio.create_task(reference.read())
        await asyncio.sleep(0)
        assert source.reads == 1
        source.draining = frozenset({"a"})
        reference.drained("a", True)
        await reading
        assert told == [frozenset({"a"})]
        await reference.read()
        reference.drained("b", True)
        reference.drained("a", False)
        assert told[1:] == [frozenset({"a"}), frozenset({"a", "b"}), frozenset({"b"})]

    asyncio.run(scene())


@pytest.mark.parametrize(("failing", "reads"), [(0, 1), (FIRST_TRIES - 1, FIRST_TRIES), (FIRST_TRIES, None)])
def test_at_start_a_slow_store_is_asked_again(failing: int, reads: int | None) -> None:
    class Slow(Source):
        async def memory_tables(self) -> MemoryTables:
            self.error = StoreDown("slow") if self.reads < failing else None
            return await super().memory_tables()

    source = Slow()
    reference = Reference(source, lambda _: None)
    if reads is None:
        with pytest.raises(StoreDown):
            asyncio.run(reference.read_first())
    else:
        asyncio.run(reference.read_first())
        assert (source.reads, reference.tables) == (reads, TABLES)
