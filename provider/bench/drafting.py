"""What a server says in /props of a model's drafting: counts and times since it loaded the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from provider.bench.client import BenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """`rounds`: rows verified with at least one draft. `drafted` and `accepted`: by depth, from the first draft behind
    a token on. Seconds are of the steps that drafted, all together; `parked_s` of those decided to go without."""

    active: bool
    reason: str | None
    rounds: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    bookkeeping_s: float = 0.0
    parked_s: float = 0.0

    def plus(self, other: "Drafting", sign: int = 1) -> "Drafting":
        return Drafting(
            active=self.active and other.active,
            reason=self.reason,
            rounds=self.rounds + sign * other.rounds,
            drafted=_added(self.drafted, other.drafted, sign),
            accepted=_added(self.accepted, other.accepted, sign),
            draft_s=self.draft_s + sign * other.draft_s,
            verify_s=self.verify_s + sign * other.verify_s,
            bookkeeping_s=self.bookkeeping_s + sign * other.bookkeeping_s,
            parked_s=self.parked_s + sign * other.parked_s,
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
        counts = said["drafted"]
        if counts is None:
            return Drafting(active=said["active"], reason=said["reason"])
        return Drafting(
            active=said["active"],
            reason=said["reason"],
            rounds=counts["rounds"],
            drafted=tuple(counts["drafted"]),
            accepted=tuple(counts["accepted"]),
            draft_s=counts["draft_s"],
            verify_s=counts["verify_s"],
            bookkeeping_s=counts["bookkeeping_s"],
            parked_s=counts["parked_s"],
        )
    except (LookupError, StopIteration, TypeError) as error:
        raise BenchError(f"/props does not say what {model} has drafted ({error!r})") from error


def _added(one: tuple[int, ...], other: tuple[int, ...], sign: int) -> tuple[int, ...]:
    return tuple(mine + sign * theirs for mine, theirs in zip_longest(one, other, fillvalue=0))
