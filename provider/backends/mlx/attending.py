"""Attention in exact mode: one launch for each query, over the keys of its own sequence at its own length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from provider.backends.mlx.aside import Aside


@dataclass(frozen=True, slots=True)
class Query:
    """queries [1, Hq, 1, D] of one position; keys and values [1, Hkv, L, D], the last `later` of which lie behind
    it."""

    queries: mx.array
    keys: mx.array
    values: mx.array
    later: int

    def seen(self) -> tuple[mx.array, mx.array]:
        if self.later == 0:
            return self.keys, self.values
        end = self.keys.shape[2] - self.later
        return self.keys[..., :end, :], self.values[..., :end, :]


class Attend(Protocol):
    def __call__(self, asked: Sequence[Query], scale: float) -> list[mx.array]:
        """[1, Hq, 1, D] for each, in order."""
        ...


class EachAlone:
    """Implements Attend."""

    def __init__(self, aside: Aside) -> None:
        self._aside = aside

    def __call__(self, asked: Sequence[Query], scale: float) -> list[mx.array]:
        def attended(number: int) -> mx.array:
            one = asked[number]
            return mx.fast.scaled_dot_product_attention(one.queries, *one.seen(), scale=scale)

        return self._aside.halved(attended, [one.keys.shape[2] for one in asked])
