"""Who is parked, and when: the choices an operator or a test can make."""

from collections.abc import Callable
from collections.abc import Sequence as Line
from dataclasses import dataclass
from enum import StrEnum

from provider.scheduler.sequence import Sequence

ROTATE_S = 2.0
"""A parked head of line that has waited this long takes turns with a resident,"""
ROTATE_RECOMPUTED_S = 30.0
"""or this long, when it has to be computed again."""
ROTATE_TOKENS = 16
"""Nobody gives its place up before it has come this far with it: a rotation always pays for itself."""
HYSTERESIS_STEPS = 16
"""Whoever comes back finds room for so many steps of everybody, so that its return calls for no park."""


class Policy(StrEnum):
    LEAST_LOST = "least-lost"
    YOUNGEST = "youngest"
    OLDEST = "oldest"
    LARGEST = "largest"


@dataclass(frozen=True, slots=True)
class ParkRules:
    """`every`: park each sequence whenever it has emitted so many tokens more, for at least `hold_s`."""

    policy: Policy = Policy.LEAST_LOST
    every: int | None = None
    hold_s: float = 0.0

    def forces(self, one: Sequence) -> bool:
        return self.every is not None and one.emitted - one.forced_at >= self.every


def victim(candidates: Line[Sequence], policy: Policy, lost_s: Callable[[Sequence], float]) -> Sequence:
    """The lowest priority first; among equals by policy, and the youngest on a tie. `lost_s`: the work that parking it
    would cost."""

    def least_entitled(one: Sequence) -> tuple[int, float, int]:
        match policy:
            case Policy.LEAST_LOST:
                order = lost_s(one)
            case Policy.YOUNGEST:
                order = -float(one.arrival)
            case Policy.OLDEST:
                order = float(one.arrival)
            case Policy.LARGEST:
                order = -float(one.positions)
        return (one.priority, order, -one.arrival)

    return min(candidates, key=least_entitled)
