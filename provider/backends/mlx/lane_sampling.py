"""Drawing in exact mode: every launch runs on all rows of a lane, whatever its other rows ask for."""

from collections.abc import Sequence

import mlx.core as mx

from provider.backends.mlx.sampling import Sampler, adjusted, kind_of
from provider.generation import Sampling

NOBODY = Sampler(Sampling(temperature=0))
"""Draws where nobody looks."""


def sample_lane(logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> mx.array:
    """As sampling.sample, of logits [rows, V], the first of which are drawn from -> tokens [rows]."""
    rows = logits.shape[0]
    everyone = [*draws, *[(NOBODY, 0)] * (rows - len(draws))]
    logits = adjusted(logits, everyone)
    kinds = [kind_of(sampler.sampling) for sampler, _ in draws]
    tokens: mx.array | None = None
    for kind in dict.fromkeys(kinds):
        ours = [*(one is kind for one in kinds), *[False] * (rows - len(draws))]
        in_their_place = draws[kinds.index(kind)]
        drawn = kind(logits, [one if asked else in_their_place for one, asked in zip(everyone, ours, strict=True)])
        tokens = drawn if tokens is None else mx.where(mx.array(ours), drawn, tokens)
    assert tokens is not None, "a pass has a row"
    return tokens
