"""Rows out of the outputs of several launches, for a launch of other rows."""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx


class Pick:
    """`wanted[i]`: which row of all outputs, counted through, is the i-th; None: it does not matter which. `sizes`: the
    rows of each output. Where one output already is what is wanted, nothing is moved."""

    def __init__(self, wanted: Sequence[int | None], sizes: Sequence[int]) -> None:
        begins = [0, *accumulate(sizes)]
        self._whole = next(
            (n for n, size in enumerate(sizes) if size == len(wanted) and _in_place(wanted, begins[n])), None
        )
        self._index = None if self._whole is not None else mx.array([row or 0 for row in wanted])

    def __call__(self, pool: "Pool") -> mx.array:
        if self._whole is not None:
            return pool.outputs[self._whole]
        assert self._index is not None
        return pool.joined()[self._index]


class Pool:
    """Outputs of one kind, put together when that is needed."""

    def __init__(self, outputs: Sequence[mx.array]) -> None:
        self.outputs = outputs
        self._joined: mx.array | None = None

    def joined(self) -> mx.array:
        if self._joined is None:
            self._joined = self.outputs[0] if len(self.outputs) == 1 else mx.concatenate([*self.outputs])
        return self._joined


def _in_place(wanted: Sequence[int | None], begin: int) -> bool:
    return all(row is None or row == begin + place for place, row in enumerate(wanted))
