"""Secrets and who holds them: made once, stored as hashes, remembered so that Postgres is off the hot path."""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from coordinator import log
from coordinator.endless import again
from coordinator.errors import StoreDown
from coordinator.store.records import Token

GRACE_S = 600.0
"""How long a key is taken on trust while the store is down."""
REMEMBERED = 10_000
IDLE_S = 3600.0
"""A key that nobody has used for so long is not remembered."""
TOUCH_EVERY_S = 60.0
LOOKUPS = 2
"""At once, so that a flood of made-up keys leaves the store's other connections to those who need them."""


def new_secret() -> str:
    return "dbk_" + secrets.token_urlsafe(32)


def hashed(secret: str) -> bytes:
    """A secret is random and long, so a plain hash is as good as a slow one."""
    return hashlib.sha256(secret.encode()).digest()


@dataclass(slots=True)
class _Remembered:
    """`confirmed_s`: when the store was last asked and still knew it."""

    token: Token
    confirmed_s: float
    used_s: float
    touched_s: float
    holders: list[asyncio.Event] = field(default_factory=list)


class KeyRing:
    """The keys seen lately, looked up again together every `fresh_s`: so long may a revoked key still pass where the
    store answers. Owned by the event loop; `used` is told of a key's use once a minute."""

    def __init__(
        self,
        live: Callable[[Collection[bytes]], Awaitable[Mapping[bytes, Token]]],
        clock: Callable[[], float],
        used: Callable[[Token], None],
        fresh_s: float,
    ) -> None:
        """`live` answers with those of the hashes that belong to a live token."""
        self._live = live
        self._clock = clock
        self._used = used
        self._fresh_s = fresh_s
        self._remembered: dict[bytes, _Remembered] = {}
        self._lookups = asyncio.Semaphore(LOOKUPS)

    async def token(self, secret: str) -> Token | None:
        """The live token of that secret. Raises StoreDown when only the store could tell."""
        sha256 = hashed(secret)
        known = self._remembered.get(sha256)
        if known is None or self._clock() - known.confirmed_s >= GRACE_S:
            known = await self._ask(sha256)
        if known is None:
            return None
        self._note_use(known)
        return known.token

    @contextmanager
    def holding(self, secret: str) -> Iterator[asyncio.Event]:
        """For as long as something open depends on the key, it is remembered, and the event tells of its end."""
        revoked = asyncio.Event()
        known = self._remembered.get(hashed(secret))
        if known is None:
            revoked.set()
            yield revoked
            return
        known.holders.append(revoked)
        try:
            yield revoked
        finally:
            known.holders.remove(revoked)

    def revoked(self, token_id: int) -> None:
        """Known here at once; the other coordinators ask."""
        for sha256 in [sha256 for sha256, known in self._remembered.items() if known.token.id == token_id]:
            self._forget(sha256)

    async def refresh(self) -> None:
        """Raises StoreDown, and then nothing has changed."""
        asked_s = self._clock()
        self._drop_idle(asked_s)
        hashes = list(self._remembered)
        live = await self._live(hashes) if hashes else {}
        for sha256 in hashes:
            token, known = live.get(sha256), self._remembered.get(sha256)
            if token is None:
                self._forget(sha256)
            elif known is not None:
                known.token, known.confirmed_s = token, asked_s

    async def run(self) -> None:
        """For ever."""
        await again(self._fresh_s, self._refresh_if_there, "keys_not_refreshed")

    async def _refresh_if_there(self) -> None:
        try:
            await self.refresh()
        except StoreDown as error:
            log.warning("keys_not_refreshed", reason=str(error), remembered=len(self._remembered))

    async def _ask(self, sha256: bytes) -> _Remembered | None:
        async with self._lookups:
            asked_s = self._clock()
            token = (await self._live([sha256])).get(sha256)
        if token is None:
            self._forget(sha256)
            return None
        known = self._remembered.get(sha256)
        if known is None:
            self._make_room()
            known = self._remembered[sha256] = _Remembered(token, asked_s, asked_s, asked_s - TOUCH_EVERY_S)
        known.token, known.confirmed_s = token, asked_s
        return known

    def _note_use(self, known: _Remembered) -> None:
        known.used_s = self._clock()
        if known.used_s - known.touched_s >= TOUCH_EVERY_S:
            known.touched_s = known.used_s
            self._used(known.token)

    def _forget(self, sha256: bytes) -> None:
        known = self._remembered.pop(sha256, None)
        for revoked in () if known is None else known.holders:
            revoked.set()

    def _drop_idle(self, now_s: float) -> None:
        for sha256, known in list(self._remembered.items()):
            if not known.holders and now_s - known.used_s >= IDLE_S:
                del self._remembered[sha256]

    def _make_room(self) -> None:
        """The one that was remembered first and that nothing open depends on goes."""
        if len(self._remembered) >= REMEMBERED:
            free = (sha256 for sha256, known in self._remembered.items() if not known.holders)
            self._remembered.pop(next(free, b""), None)
