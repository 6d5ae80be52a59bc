"""Attention in exact mode: one launch for each query, over the keys of its own sequence at its own length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from provider.backends.mlx.aside import Aside
from provider.backends.mlx.device import on_the_cpu

WORTH_HANDING_OVER = 2**20
"""Products of all queries with their keys. Below it two streams wait longer for one another than they save."""


@dataclass(frozen=True, slots=True)
class Query:
    """Of the position in this `row`; keys and values [1, Hkv, L, D] of its sequence, the last `later` of which lie
    behind it."""

    row: int
    keys: mx.array
    values: mx.array
    later: int

    def seen(self) -> tuple[mx.array, mx.array]:
        if self.later == 0:
            return self.keys, self.values
        end = self.keys.shape[2] - self.later
        return self.keys[..., :end, :], self.values[..., :end, :]


class Attend(Protocol):
    def __call__(self, queries: mx.array, asked: Sequence[Query], scale: float) -> list[mx.array]:
        """queries [rows, Hkv, G, D], by the G heads that share a key head -> [1, Hkv, G, D] for each that is asked, in
        order."""
        ...


class EachAlone:
    """Implements Attend."""

    def __init__(self, aside: Aside) -> None:
        self._aside = aside

    def __call__(self, queries: mx.array, asked: Sequence[Query], scale: float) -> list[mx.array]:
        composed = on_the_cpu()
        if composed:
            queries = queries * scale

        def attended(number: int) -> mx.array:
            one = asked[number]
            own = queries[one.row : one.row + 1]
            return _composed(own, *one.seen()) if composed else _launched(own, *one.seen(), scale)

        sizes = [one.keys.shape[2] for one in asked]
        if sum(sizes) * queries.size // queries.shape[0] < WORTH_HANDING_OVER:
            return [attended(number) for number in range(len(asked))]
        return self._aside.halved(attended, sizes)


def _launched(own: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    _, key_heads, group, width = own.shape
    queries = own.reshape(1, key_heads * group, 1, width)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale).reshape(own.shape)


def _composed(own: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """What MLX composes its attention of on a CPU, without what only other shapes need: an operation takes longer to
    launch there than to compute."""
    return mx.softmax(own @ keys.swapaxes(-1, -2), axis=-1, precise=True) @ values
