"""Work that does not depend on its neighbour's, on a CPU core of its own.

MLX runs a CPU stream's operations one after the other on one thread, and the BLAS of its wheels uses that thread alone.
What two independent branches compute is the same on either stream, bit for bit, so one of them may go beside the other
(docs/benchmarks.md). A GPU orders its kernels by itself: there, everything stays on the default stream.
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

Computed = TypeVar("Computed")


class Aside:
    """Belongs to the thread that made it, as MLX's streams do."""

    def __init__(self) -> None:
        alone = mx.default_device() != mx.Device(mx.cpu) or (os.cpu_count() or 1) < 2
        self._stream = None if alone else mx.new_stream(mx.cpu)

    def __call__(self, branch: Callable[[], Computed]) -> Computed:
        """What `branch` builds, to be computed beside what is built after it."""
        if self._stream is None:
            return branch()
        with mx.stream(self._stream):
            return branch()

    def halved(self, branch: Callable[[int], Computed], sizes: Sequence[int]) -> list[Computed]:
        """branch(i) for every i, in order; about half of the work, `sizes[i]` for each, is computed aside."""
        there = self(lambda: {i: branch(i) for i in half(sizes)})
        return [there[i] if i in there else branch(i) for i in range(len(sizes))]


class Straight(Aside):
    """Nothing goes aside: for what is aside itself."""

    def __init__(self) -> None:
        self._stream = None


STRAIGHT = Straight()


def half(sizes: Sequence[int]) -> list[int]:
    """Which to give away: all are shared out, the largest first, to whoever has less."""
    kept, given, away = 0, 0, []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if given < kept:
            given += sizes[i]
            away.append(i)
        else:
            kept += sizes[i]
    return away
