"""Into which launches the rows of a decode step go. Exact mode computes every one of them on the same number of rows
(a lane), whoever else decodes; what is missing is filled up with rows that nobody sees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Lane:
    """The sequences whose positions lie in it, one behind the other, by their place in the step; of `rows` rows, those
    behind them are padding."""

    members: list[int]
    rows: int


class Packing(Protocol):
    def pack(self, widths: Sequence[int]) -> list[Lane]:
        """`widths[i]`: how many positions the i-th sequence of a step has, its token and its drafts."""
        ...

    def fit(self, widths: Sequence[int]) -> Sequence[int]:
        """As many positions, or fewer drafts, where those would take a launch that hardly any of them fills."""
        ...


class PaddedLanes:
    """Implements Packing. A sequence's positions are never in two lanes, so it may have `rows` - 1 drafts."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def pack(self, widths: Sequence[int]) -> list[Lane]:
        lanes: list[Lane] = []
        spare: list[int] = []
        for number, width in enumerate(widths):
            at = next((lane for lane, left in enumerate(spare) if width <= left), None)
            if at is None:
                at = len(lanes)
                lanes.append(Lane([], self.rows))
                spare.append(self.rows)
            lanes[at].members.append(number)
            spare[at] -= width
        assert all(left >= 0 for left in spare), "a sequence never has more positions than a lane has rows"
        return lanes

    def fit(self, widths: Sequence[int]) -> Sequence[int]:
        """Drops drafts, at most half a lane of them, where that saves a lane."""
        if not widths:
            return widths
        total, rows = sum(widths), self.rows
        lanes = max(-(-len(widths) // rows), (2 * total + rows) // (2 * rows))
        fitted: list[int] = []
        for lane in range(lanes):
            begin, end = (len(widths) * at // lanes for at in (lane, lane + 1))
            fitted += _shortened(widths[begin:end], rows)
        dropped = total - sum(fitted)
        return fitted if 2 * dropped <= rows and len(self.pack(fitted)) < len(self.pack(widths)) else widths


def _shortened(widths: Sequence[int], rows: int) -> list[int]:
    """Within `rows` positions together, the longest giving up first."""
    left = [*widths]
    while sum(left) > rows:
        longest = len(left) - 1 - left[::-1].index(max(left))
        left[longest] -= 1
    return left
