"""What drafting has come to, counted since the model was loaded."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """`drafted[d]` and `accepted[d]`: guesses at the d-th place behind a row's token, from 0 on. `rounds`: rows that
    were verified with at least one draft."""

    rounds: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def note(self, drafted: int, accepted: int) -> None:
        if drafted == 0:
            return
        self.rounds += 1
        _count(self.drafted, range(drafted))
        _count(self.accepted, range(accepted))


def _count(counts: list[int], places: Iterable[int]) -> None:
    for place in places:
        if place == len(counts):
            counts.append(0)
        counts[place] += 1
