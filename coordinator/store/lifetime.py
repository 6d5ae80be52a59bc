"""Opens the store that the settings name: the embedded Postgres or a given one, migrated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from coordinator.config import Settings
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.postgres import Store
from coordinator.store.schema import migrate


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[str]:
    """The URL of a database that answers for as long as the block lasts. Raises CoordinatorError."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    embedded = EmbeddedPostgres(settings.data_dir)
    url = await asyncio.to_thread(embedded.acquire)
    try:
        yield url
    finally:
        await asyncio.to_thread(embedded.release)


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store]:
    """Raises CoordinatorError."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(settings))
        await asyncio.to_thread(migrate, url)
        store = Store(url)
        stack.push_async_callback(store.close)
        yield store
