"""Rows of one launch's output, for a launch of other rows."""

from collections.abc import Sequence

import mlx.core as mx


class Pick:
    """`wanted[i]`: which of `rows` rows is the i-th; None: it does not matter which. Where they already are what is
    wanted, nothing is moved."""

    def __init__(self, wanted: Sequence[int | None], rows: int) -> None:
        in_place = len(wanted) == rows and all(row is None or row == place for place, row in enumerate(wanted))
        self._index = None if in_place else mx.array([row or 0 for row in wanted])

    def __call__(self, x: mx.array) -> mx.array:
        return x if self._index is None else mx.take(x, self._index, axis=0)
