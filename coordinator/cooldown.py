"""A provider that keeps refusing a model for want of capacity is left alone for a while, and then tried with one
request at a time until it accepts: pure.

A provider may look idle and still refuse (its own view of memory differs from what it reports); asked again at once, it
refuses again, thousands of times over.
"""

from dataclasses import dataclass

REFUSALS = 3
"""In a row, before the first cooldown."""
FIRST_S = 5.0
LONGEST_S = 300.0
FORGOTTEN_AFTER_S = 600.0
"""Refusals that far apart are not one story."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a provider reports about one model that would make a refusal stale once it differs."""

    loaded: bool
    full: bool
    tokens_max: int
    max_concurrency: int
    cold_load: str


@dataclass(frozen=True, slots=True)
class Cooldown:
    """Refusals of one model by one provider since it last accepted, and what it reported at the last of them."""

    refusals: int
    refused_s: float
    until_s: float
    capacity: Capacity

    def active(self, now_s: float) -> bool:
        return now_s < self.until_s

    def forbids(self, now_s: float, trying: bool) -> bool:
        """`trying`: a request is with the provider already, and has not been accepted."""
        return self.active(now_s) or (trying and self.refusals >= REFUSALS)


def refused(known: Cooldown | None, capacity: Capacity, now_s: float) -> Cooldown:
    """One more refusal. Those that were under way when a cooldown began do not lengthen it."""
    if known is not None and known.active(now_s):
        return known
    forgotten = known is None or now_s - known.refused_s >= FORGOTTEN_AFTER_S
    refusals = 1 if known is None or forgotten else known.refusals + 1
    return Cooldown(refusals, now_s, now_s + _length_s(refusals), capacity)


def outdated(cooldown: Cooldown, capacity: Capacity) -> bool:
    """The provider reports another capacity than when it refused: it may be asked again."""
    return cooldown.capacity != capacity


def _length_s(refusals: int) -> float:
    beyond = refusals - REFUSALS
    return 0.0 if beyond < 0 else min(LONGEST_S, FIRST_S * 2.0 ** min(beyond, 16))
