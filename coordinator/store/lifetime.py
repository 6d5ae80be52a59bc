"""Opens the store that the settings name: the embedded Postgres or a given one, migrated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from coordinator import log
from coordinator.config import Settings
from coordinator.errors import CoordinatorError, StoreAway
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.postgres import Store
from coordinator.store.schema import migrate, place_of

KEEP_EVERY_S = 1
REACH_EVERY_S = 2


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """The URL of a database that answers for as long as the block lasts. Raises CoordinatorError."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    acquiring = asyncio.create_task(asyncio.to_thread(embedded.acquire))
    keeping = asyncio.create_task(_keep(embedded, acquiring))
    try:
        await asyncio.wait({acquiring})  # which, being cancelled, leaves it alone
        url = acquiring.result()
        log.event("postgres_ready", at=place_of(url))
        yield url
    finally:
        embedded.give_up()
        keeping.cancel()
        await asyncio.wait({acquiring, keeping})
        acquiring.exception()
        await asyncio.to_thread(embedded.release)


async def _keep(embedded: EmbeddedPostgres, acquiring: asyncio.Task[str]) -> None:
    """Starts the server again when it has died (killed, out of memory). Runs for ever."""
    await asyncio.wait({acquiring})
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        try:
            if await asyncio.to_thread(embedded.revive):
                log.event("postgres_restarted")
        except CoordinatorError as error:
            log.failure("postgres_not_restarted", error)


@asynccontextmanager
async def open_store(settings: Settings, patient: bool = False) -> AsyncIterator[Store]:
    """`patient`: waits for a database that cannot be reached yet. May be cancelled at any moment. Raises
    CoordinatorError."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(settings))
        await _migrate(url, patient)
        store = Store(url)
        stack.push_async_callback(store.close)
        yield store


async def _migrate(url: str, patient: bool) -> None:
    while True:
        try:
            return await asyncio.to_thread(migrate, url)
        except StoreAway as error:
            if not patient:
                raise
            log.warning("database_awaited", at=place_of(url), reason=str(error))
        await asyncio.sleep(REACH_EVERY_S)
