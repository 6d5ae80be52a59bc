"""What a server says in /props of a model's drafting: counts and times since it loaded the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from provider.bench.client import BenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """`rounds`: rows verified with at least one draft. `drafted` and `accepted`: by depth, from the first draft behind
    a token on. Times are of all rounds together."""

    active: bool
    reason: str | None
    rounds: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    bookkeeping_ms: float = 0.0

    def plus(self, other: "Drafting", sign: int = 1) -> "Drafting":
        return Drafting(
            active=self.active and other.active,
            reason=self.reason,
            rounds=self.rounds + sign * other.rounds,
            drafted=_added(self.drafted, other.drafted, sign),
            accepted=_added(self.accepted, other.accepted, sign),
            draft_ms=self.draft_ms + sign * other.draft_ms,
            verify_ms=self.verify_ms + sign * other.verify_ms,
            bookkeeping_ms=self.bookkeeping_ms + sign * other.bookkeeping_ms,
        )

    def since(self, earlier: "Drafting") -> "Drafting":
        """What came after `earlier`."""
        return self.plus(earlier, sign=-1)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Of the drafts at each depth, down to the deepest that was tried."""
        pairs = zip_longest(self.accepted, self.drafted, fillvalue=0)
        return tuple(accepted / drafted for accepted, drafted in pairs if drafted)


def read_drafting(props: Mapping[str, Any], model: str) -> Drafting:
    """Raises BenchError when the answer of /props does not say it of that model."""
    try:
        said = next(one["mtp"] for one in props["models"] if one["id"] == model)
        return Drafting(
            active=said["active"],
            reason=said["reason"],
            rounds=said["rounds"],
            drafted=tuple(said["drafted"]),
            accepted=tuple(said["accepted"]),
            draft_ms=said["draft_ms"],
            verify_ms=said["verify_ms"],
            bookkeeping_ms=said["bookkeeping_ms"],
        )
    except (LookupError, StopIteration, TypeError) as error:
        raise BenchError(f"/props does not say what {model} has drafted ({error!r})") from error


def _added(one: tuple[int, ...], other: tuple[int, ...], sign: int) -> tuple[int, ...]:
    return tuple(mine + sign * theirs for mine, theirs in zip_longest(one, other, fillvalue=0))
