"""Opens the store that the settings name: the embedded Postgres or a given one, migrated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

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


class AskedToEnd(Exception):
    """While the database was waited for."""


@asynccontextmanager
async def open_store(settings: Settings, ending: asyncio.Event | None = None) -> AsyncIterator[Store]:
    """With `ending` it waits for a database that cannot be reached yet, until that is set, which raises AskedToEnd.
    Raises CoordinatorError."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database(settings))
        await _migrate(url, ending)
        store = Store(url)
        stack.push_async_callback(store.close)
        yield store


async def _migrate(url: str, ending: asyncio.Event | None) -> None:
    while True:
        try:
            return await asyncio.to_thread(migrate, url)
        except StoreAway as error:
            if ending is None:
                raise
            log.warning("database_awaited", at=place_of(url), reason=str(error))
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_EVERY_S):
                await ending.wait()
        if ending.is_set():
            raise AskedToEnd
