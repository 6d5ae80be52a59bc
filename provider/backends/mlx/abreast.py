"""The lanes of a decode step side by side, one behind the other in one array.

What is done element by element is done to all of them at once: an element's value does not depend on how many there
are. What sums (products, norms, whatever a model's own modules do) is launched for each lane by itself.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx

from provider.backends.mlx.aside import Aside
from provider.backends.mlx.products import Product
from provider.backends.mlx.rms_norm import joined, rms_norm

WORTH_HANDING_OVER = 2**19
"""Rows times bytes of weights. Below it two streams wait longer for one another than they save."""


class Abreast:
    def __init__(self, sizes: Sequence[int], aside: Aside) -> None:
        self._sizes = sizes
        self._rows = sum(sizes)
        self._bounds = [*accumulate(sizes)][:-1]
        self._aside = aside

    def apart(self, x: mx.array) -> list[mx.array]:
        """Of each lane, its rows."""
        return [*mx.split(x, self._bounds)] if self._bounds else [x]

    def each(self, module: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
        return joined([module(one) for one in self.apart(x)])

    def products(self, asked: Sequence[Product], x: mx.array) -> list[mx.array]:
        """Where it is worth that, about half of the work is computed aside."""
        lanes = self.apart(x)
        work = [(one, lane) for one in asked for lane in lanes]
        if len(work) == 1 or self._rows * sum(one.weight_bytes for one in asked) < WORTH_HANDING_OVER:
            outs = [one.of(lane) for one, lane in work]
        else:
            sizes = [size * one.weight_bytes for one in asked for size in self._sizes]
            outs = self._aside.halved(lambda i: work[i][0].of(work[i][1]), sizes)
        count = len(lanes)
        return [joined(outs[begin : begin + count]) for begin in range(0, len(outs), count)]

    def product(self, asked: Product, x: mx.array) -> mx.array:
        (made,) = self.products([asked], x)
        return made

    def norm(self, module: Any, x: mx.array) -> mx.array:
        """`module`: with a weight and an epsilon."""
        return rms_norm(x, module.weight, module.eps, self.apart)
