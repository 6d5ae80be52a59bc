"""What a key may ask for in a minute: pure but for the clock that it is given.

Each limit is a bucket that holds a minute's worth and fills evenly, so that a key may use it up at once and then goes
on at its rate. Every coordinator has buckets of its own: no request waits for Postgres, and a limit holds while
Postgres is away. A key that is used through n coordinators may reach n times its limits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from coordinator.store.records import Token

MINUTE_S = 60.0
BUCKETS = 10_000

LimitName = Literal["requests_per_minute", "tokens_per_minute"]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The limit that a request would go beyond, and when it no longer would."""

    limit: LimitName
    allowed: int
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of a limit is left, and when all of it will be there again if nothing more is used."""

    limit: LimitName
    allowed: int
    remaining: int
    reset_s: float


@dataclass(slots=True)
class Bucket:
    """`level` is below 0 when more was used than anybody had foreseen."""

    level: float
    filled_s: float

    def fill(self, per_minute: int, now_s: float) -> None:
        self.level = min(per_minute, self.level + (now_s - self.filled_s) * per_minute / MINUTE_S)
        self.filled_s = now_s


@dataclass(frozen=True, slots=True)
class _Reserved:
    token_id: int
    tokens: int


class RateLimits:
    """Owned by the event loop. What a job will use is reserved when it is admitted and settled when it ends; a job that
    runs is never cut off."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[tuple[int, LimitName], Bucket] = {}
        self._reserved: dict[str, _Reserved] = {}

    def admit(self, token: Token, job_id: str, tokens: int) -> Exceeded | None:
        """Takes a request and so many tokens from the key's buckets; from neither where one holds too little. A job of
        more tokens than a whole minute's is admitted by a full bucket."""
        requests, per_minute = token.limits.requests_per_minute, token.limits.tokens_per_minute
        exceeded = self._short(token, "requests_per_minute", requests, 1)
        wanted = 0 if per_minute is None else min(tokens, per_minute)
        exceeded = exceeded or self._short(token, "tokens_per_minute", per_minute, wanted)
        if exceeded is not None:
            return exceeded
        self._take(token.id, "requests_per_minute", 1)
        if per_minute is not None:
            self._take(token.id, "tokens_per_minute", wanted)
            self._reserved[job_id] = _Reserved(token.id, wanted)
        return None

    def settle(self, job_id: str, used_tokens: int) -> None:
        """Once: what was reserved is replaced by what was used."""
        reserved = self._reserved.pop(job_id, None)
        if reserved is not None:
            self._take(reserved.token_id, "tokens_per_minute", used_tokens - reserved.tokens)

    def standings(self, token: Token) -> list[Standing]:
        """Of each limit that the key has."""
        told: tuple[tuple[LimitName, int | None], ...] = (
            ("requests_per_minute", token.limits.requests_per_minute),
            ("tokens_per_minute", token.limits.tokens_per_minute),
        )
        return [self._standing(token.id, limit, per_minute) for limit, per_minute in told if per_minute is not None]

    def _standing(self, token_id: int, limit: LimitName, per_minute: int) -> Standing:
        bucket = self._bucket(token_id, limit, per_minute)
        bucket.fill(per_minute, self._clock())
        missing = per_minute - bucket.level
        return Standing(limit, per_minute, max(0, math.floor(bucket.level)), missing * MINUTE_S / per_minute)

    def _short(self, token: Token, limit: LimitName, per_minute: int | None, wanted: int) -> Exceeded | None:
        if per_minute is None:
            return None
        bucket = self._bucket(token.id, limit, per_minute)
        bucket.fill(per_minute, self._clock())
        missing = wanted - bucket.level
        if missing <= 0:
            return None
        return Exceeded(limit, per_minute, max(1, math.ceil(missing * MINUTE_S / per_minute)))

    def _bucket(self, token_id: int, limit: LimitName, per_minute: int) -> Bucket:
        known = self._buckets.get((token_id, limit))
        if known is not None:
            return known
        self._make_room()
        made = self._buckets[token_id, limit] = Bucket(per_minute, self._clock())
        return made

    def _take(self, token_id: int, limit: LimitName, amount: int) -> None:
        bucket = self._buckets.get((token_id, limit))
        if bucket is not None:
            bucket.level -= amount

    def _make_room(self) -> None:
        """Whoever has asked for nothing in a minute, and owes nothing, has a full bucket: as good as none."""
        if len(self._buckets) >= BUCKETS:
            old_s = self._clock() - MINUTE_S
            kept = {key: one for key, one in self._buckets.items() if one.filled_s > old_s or one.level < 0}
            self._buckets = kept
