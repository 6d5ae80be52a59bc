"""Who of several coordinators does what only one may do: whoever holds an advisory lock."""

import asyncio
from contextlib import suppress

import psycopg
from sqlalchemy import make_url

from coordinator.errors import StoreDown
from coordinator.store.postgres import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, driver_url

PLACING = 0x6461726B706C6163
"""The lock of the one that places models ("darkplac")."""
DEAD_PEER = ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3")
"""A holder whose machine has vanished loses the lock within half a minute."""


class Leadership:
    """A session of its own at the database: its end, for whatever reason, is the end of the lock. Not for a pooler that
    shares sessions between clients."""

    def __init__(self, url: str, lock: int = PLACING) -> None:
        self._url = make_url(driver_url(url)).set(drivername="postgresql").render_as_string(hide_password=False)
        self._lock = lock
        self._session: psycopg.AsyncConnection | None = None
        self._mine = False

    async def held(self) -> bool:
        """Whether the lock is ours now; it is tried for. Raises StoreDown when nobody can tell: then it is not."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._held()
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self.close()
            raise StoreDown(" ".join(str(error).split()) or type(error).__name__) from error

    async def close(self) -> None:
        session, self._session, self._mine = self._session, None, False
        if session is not None:
            with suppress(psycopg.Error, OSError):
                await session.close()

    async def _held(self) -> bool:
        session = self._session
        if session is None:
            session = self._session = await self._opened()
        if self._mine:
            await session.execute("select 1")
            return True
        asked = await session.execute("select pg_try_advisory_lock(%s)", [self._lock])
        row = await asked.fetchone()
        self._mine = row is not None and bool(row[0])
        return self._mine

    async def _opened(self) -> psycopg.AsyncConnection:
        session = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, keepalives_idle=10, keepalives_interval=5
        )
        for setting in DEAD_PEER:
            await session.execute(f"set {setting}")
        return session
