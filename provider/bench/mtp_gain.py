"""From the rates of two servers, one that drafts and one that does not, to what drafting gains."""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

from provider.bench.drafting import Drafting


class Side(StrEnum):
    PLAIN = "plain"
    DRAFTING = "drafting"

    @property
    def environment(self) -> dict[str, str]:
        """Of its server: this one's, with the kill switch thrown or without it."""
        inherited = {key: value for key, value in os.environ.items() if key != "DARKBLOOM_MTP"}
        return {**inherited, "DARKBLOOM_MTP": "0"} if self is Side.PLAIN else inherited


@dataclass(frozen=True, slots=True)
class Measured:
    """One server at one number of streams in one round. `drafting`: what it drafted meanwhile."""

    side: Side
    streams: int
    tokens_per_s: float
    drafting: Drafting


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """At one number of streams. Rates and ratio are medians over the rounds. Counts are by depth, and of all rounds
    together; so are the times: `_ms` for each row verified with drafts (None without any), `parked_s` in all."""

    streams: int
    plain_tokens_per_s: float
    drafting_tokens_per_s: float
    ratio: float
    ratios: tuple[float, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    acceptance: tuple[float, ...]
    draft_ms: float | None
    verify_ms: float | None
    bookkeeping_ms: float | None
    parked_s: float


def gains_of(measured: Sequence[Measured]) -> list[Gain]:
    """One for each number of streams, in order. Both sides of a round are in it."""
    return [_gain(streams, measured) for streams in sorted({one.streams for one in measured})]


def _gain(streams: int, measured: Sequence[Measured]) -> Gain:
    plain, drafting = (
        [one for one in measured if (one.streams, one.side) == (streams, side)] for side in (Side.PLAIN, Side.DRAFTING)
    )
    ratios = tuple(mine.tokens_per_s / other.tokens_per_s for mine, other in zip(drafting, plain, strict=True))
    drafted = reduce(Drafting.plus, (one.drafting for one in drafting))

    def each_ms(seconds: float) -> float | None:
        return 1000 * seconds / drafted.rounds if drafted.rounds else None

    return Gain(
        streams=streams,
        plain_tokens_per_s=statistics.median(one.tokens_per_s for one in plain),
        drafting_tokens_per_s=statistics.median(one.tokens_per_s for one in drafting),
        ratio=statistics.median(ratios),
        ratios=ratios,
        drafted=drafted.drafted,
        accepted=drafted.accepted,
        acceptance=drafted.acceptance,
        draft_ms=each_ms(drafted.draft_s),
        verify_ms=each_ms(drafted.verify_s),
        bookkeeping_ms=each_ms(drafted.bookkeeping_s),
        parked_s=drafted.parked_s,
    )
