"""Secrets and who holds them: made once, stored as hashes, remembered briefly so that Postgres is off the hot path."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.errors import StoreDown
from coordinator.store.records import Token

GRACE_S = 600.0
"""How long a key is taken on trust while the store is down."""
REMEMBERED = 10_000


def new_secret() -> str:
    return "dbk_" + secrets.token_urlsafe(32)


def hashed(secret: str) -> bytes:
    """A secret is random and long, so a plain hash is as good as a slow one."""
    return hashlib.sha256(secret.encode()).digest()


@dataclass(slots=True)
class _Remembered:
    token: Token
    seen_s: float
    ask_again_s: float


class KeyRing:
    """The keys seen lately. Owned by the event loop; `used` is told of a key at most once in `fresh_s`."""

    def __init__(
        self,
        lookup: Callable[[bytes], Awaitable[Token | None]],
        clock: Callable[[], float],
        used: Callable[[Token], None],
        fresh_s: float,
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        self._used = used
        self._fresh_s = fresh_s
        self._remembered: dict[bytes, _Remembered] = {}

    async def token(self, secret: str) -> Token | None:
        """The live token of that secret. Raises StoreDown when only the store could tell."""
        sha256 = hashed(secret)
        now = self._clock()
        known = self._remembered.get(sha256)
        if known is not None and now < known.ask_again_s:
            return known.token
        if known is not None:
            # The others who hold this key go on with what is known while one asks.
            known.ask_again_s = now + self._fresh_s
        return await self._ask(sha256, known)

    async def _ask(self, sha256: bytes, known: _Remembered | None) -> Token | None:
        try:
            token = await self._lookup(sha256)
        except StoreDown:
            if known is not None and self._clock() - known.seen_s < GRACE_S:
                return known.token
            raise
        if token is None:
            self._remembered.pop(sha256, None)
            return None
        self._remember(sha256, token)
        self._used(token)
        return token

    def _remember(self, sha256: bytes, token: Token) -> None:
        now = self._clock()
        if len(self._remembered) >= REMEMBERED and sha256 not in self._remembered:
            self._remembered.pop(next(iter(self._remembered)))
        self._remembered[sha256] = _Remembered(token, now, now + self._fresh_s)
