"""How likely the model itself held what was drawn, and what it held likeliest."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from provider.backends.mlx.sampling import Sampler
from provider.generation import TokenLogprob


class Logprobs:
    """Of those positions of a pass whose sampling asks: computed on the device from its logits [R, V] as they are, and
    only what is told is copied to the host. `drawn` [R]; neither needs to have been computed yet."""

    def __init__(self, ids: Sequence[str], logits: mx.array, drawn: mx.array, samplers: Sequence[Sampler]) -> None:
        """`ids`: whose each position is."""
        asked = [(row, one.sampling.logprobs) for row, one in enumerate(samplers)]
        counts = {row: count for row, count in asked if count is not None}
        self._ids = [ids[row] for row in counts]
        self._counts = list(counts.values())
        self._told: list[TokenLogprob] | None = None
        self.arrays: list[mx.array] = []
        if counts:
            rows = mx.array([*counts])
            self.arrays = _ranked(logits[rows].astype(mx.float32), drawn[rows], max(self._counts))

    def of(self, id: str) -> list[TokenLogprob]:
        """In the order of its positions, those behind a wrong draft included. Waits for the pass."""
        if self._told is None:
            self._told = self._read()
        return [one for whose, one in zip(self._ids, self._told, strict=True) if whose == id]

    def _read(self) -> list[TokenLogprob]:
        if not self.arrays:
            return []
        chosen, tokens, values = (_listed(array) for array in self.arrays)
        return [
            TokenLogprob(logprob, sorted(zip(ids, likely, strict=True), key=_likeliest)[:count])
            for logprob, ids, likely, count in zip(chosen, tokens, values, self._counts, strict=True)
        ]


def _ranked(logits: mx.array, drawn: mx.array, count: int) -> list[mx.array]:
    """[N] of the drawn; ids and values [N, count] of the likeliest, in no order."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, drawn[:, None], axis=-1)[:, 0]
    if count == 0:
        return [chosen, mx.zeros((len(logits), 0), dtype=mx.int32), mx.zeros((len(logits), 0))]
    tokens = mx.argpartition(-logprobs, count - 1, axis=-1)[:, :count]
    return [chosen, tokens, mx.take_along_axis(logprobs, tokens, axis=-1)]


def _likeliest(one: tuple[int, float]) -> tuple[float, int]:
    token, logprob = one
    return -logprob, token


def _listed(array: mx.array) -> list[Any]:
    values: Any = array.tolist()  # typed by mlx as any nesting of numbers
    return list(values)
