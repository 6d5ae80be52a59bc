"""Where every position of a decode step lies in exact mode: in which lane for weight matmuls, norms and the head, in
which bank for the recurrence."""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from provider.backends.mlx.banks import Seat
from provider.backends.mlx.picks import Pick
from provider.exact.packing import Lane


class Lanes:
    """Of sequences with `widths[i]` positions each. `begins[i]`: the row of the first of them, counted through all
    lanes."""

    def __init__(self, lanes: Sequence[Lane], widths: Sequence[int]) -> None:
        self.lanes = lanes
        self.widths = widths
        self.longest = max(widths)
        self.sizes = [lane.rows for lane in lanes]
        self.rows = sum(self.sizes)
        self.begins = [0] * len(widths)
        for lane, first in zip(lanes, accumulate([0, *self.sizes]), strict=False):
            begin = first
            for number in lane.members:
                self.begins[number] = begin
                begin += widths[number]

    def tokens(self, told: mx.array) -> mx.array:
        """[sum of widths], one sequence after the other -> [rows] of all lanes. Padding repeats some token."""
        places: list[int | None] = [None] * self.rows
        source = 0
        for begin, width in zip(self.begins, self.widths, strict=True):
            places[begin : begin + width] = range(source, source + width)
            source += width
        return Pick(places, source)(told)

    def offsets(self, lengths: Sequence[int]) -> mx.array:
        """Where each row's position stands in its sequence, of which there are `lengths[i]` positions already."""
        offsets = [0] * self.rows
        for begin, width, length in zip(self.begins, self.widths, lengths, strict=True):
            offsets[begin : begin + width] = range(length, length + width)
        return mx.array(offsets)


class Crossing:
    """From lanes to banks and back. `to_banks[b]` picks [size * T] rows, T positions for each row of the bank: of a
    shorter sequence its last one again. `to_lanes` picks the rows of all lanes out of as many of every bank."""

    def __init__(self, lanes: Lanes, seats: Sequence[Seat], banks: int, size: int) -> None:
        longest = lanes.longest
        wanted: list[list[int | None]] = [[None] * (size * longest) for _ in range(banks)]
        back: list[int | None] = [None] * lanes.rows
        for begin, width, (bank, row) in zip(lanes.begins, lanes.widths, seats, strict=True):
            for t in range(longest):
                wanted[bank][row * longest + t] = begin + min(t, width - 1)
            for t in range(width):
                back[begin + t] = (bank * size + row) * longest + t
        self.to_banks = [Pick(one, lanes.rows) for one in wanted]
        self.to_lanes = Pick(back, size * longest * banks)
