"""Lets mlx-lm's model classes take one position of many sequences in a forward, each against its own keys.

Weight matmuls then run over all rows at once, and attention row by row at each row's own length: nothing is padded,
nothing is copied when a row joins or leaves, and a row's numbers are those it gets alone. The seam is the name through
which a model module reaches mlx-lm's attention: it is replaced by one that also takes a `Rows`.
"""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import mlx.core as mx

from provider.backends.mlx.block_cache import BlockCache

SEAM = "scaled_dot_product_attention"

Attend = Callable[..., mx.array]


class Rows:
    """The caches of one layer, one per row of a decode step, in the place where a model expects one cache. Behind them
    lie `padding` rows that have none: their attention is zero."""

    def __init__(self, caches: Sequence[BlockCache], padding: int = 0) -> None:
        self._caches = caches
        self._padding = padding

    @property
    def offset(self) -> mx.array:
        """[B]: each row is rotated at its own position."""
        return mx.array([*(cache.offset for cache in self._caches), *[0] * self._padding])

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> None:
        assert N == 1, "rows take one position in a step"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[list[mx.array], list[mx.array]]:
        """[B, H, 1, D] -> what each row looks at; only the replaced attention can take it."""
        held = [
            cache.update_and_fetch(keys[row : row + 1], values[row : row + 1]) for row, cache in enumerate(self._caches)
        ]
        return [keys for keys, _ in held], [values for _, values in held]


def attend_by_row(model: Any) -> bool:
    """Prepares the modules of a model's attention layers; False where one computes its attention by itself."""
    modules = {sys.modules[type(layer.self_attn).__module__] for layer in model.layers}
    if not all(hasattr(module, SEAM) for module in modules):
        return False
    for module in modules:
        _replace(module)
    return True


def _replace(module: ModuleType) -> None:
    attend: Attend = getattr(module, SEAM)
    if not isinstance(attend, _ByRow):
        setattr(module, SEAM, _ByRow(attend))


class _ByRow:
    """mlx-lm's attention, and for a `Rows` the same row by row."""

    def __init__(self, attend: Attend) -> None:
        self._attend = attend

    def __call__(
        self,
        queries: mx.array,
        keys: Any,  # an array, or one per row
        values: Any,
        cache: Any,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        if not isinstance(cache, Rows):
            return self._attend(queries, keys, values, cache, scale=scale, mask=mask, sinks=sinks)
        outs = [
            mx.fast.scaled_dot_product_attention(queries[row : row + 1], *held, scale=scale, sinks=sinks)
            for row, held in enumerate(zip(keys, values, strict=True))
        ]
        return mx.concatenate([*outs, *[mx.zeros_like(outs[0])] * (queries.shape[0] - len(outs))])
