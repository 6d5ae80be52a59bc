"""Opens the store that the settings name: the embedded Postgres or a given one, migrated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from coordinator import log
from coordinator.config import Settings
from coordinator.errors import CoordinatorError
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.postgres import Store
from coordinator.store.schema import migrate

KEEP_EVERY_S = 1


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """The URL of a database that answers for as long as the block lasts. Raises CoordinatorError."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    url = await asyncio.to_thread(embedded.acquire)
    keeping = asyncio.create_task(_keep(embedded))
    try:
        yield url
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(embedded.release)


async def _keep(embedded: EmbeddedPostgres) -> None:
    """Starts the server again when it has died (killed, out of memory). Runs for ever."""
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        try:
            if await asyncio.to_thread(embedded.revive):
                log.event("postgres_restarted")
        except CoordinatorError as error:
            log.failure("postgres_not_restarted", error)


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store]:
    """Raises CoordinatorError."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(settings))
        await asyncio.to_thread(migrate, url)
        store = Store(url)
        stack.push_async_callback(store.close)
        yield store
