"""How the positions of a decode pass lie: one after the other for weight matmuls, one row per sequence where a
position follows another."""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx


class Layout:
    """Row i has `widths[i]` positions, which lie one behind the other among R = sum(widths)."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = widths
        self.begins = [0, *accumulate(widths)][:-1]
        self.longest = max(widths)
        self.positions = sum(widths)
        self._ragged = min(widths) < self.longest
        if self._ragged:
            spread = [begin + min(t, width - 1) for begin, width in self.spans for t in range(self.longest)]
            packed = [row * self.longest + t for row, width in enumerate(widths) for t in range(width)]
            self._spread, self._packed = mx.array(spread), mx.array(packed)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Begin and width of each row."""
        return list(zip(self.begins, self.widths, strict=True))

    def by_row(self, x: mx.array) -> mx.array:
        """[R, 1, C] -> [N, W, C]; a shorter row repeats its last position, and what comes of that is not used."""
        if self._ragged:
            x = x[self._spread]
        return x.reshape(len(self.widths), self.longest, -1)

    def flat(self, x: mx.array) -> mx.array:
        """[N, W, ...] -> [R, 1, ...], the inverse."""
        x = x.reshape(len(self.widths) * self.longest, 1, *x.shape[2:])
        return x[self._packed] if self._ragged else x
