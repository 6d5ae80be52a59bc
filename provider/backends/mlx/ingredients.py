"""What makes decoding exact. Each part is an object, so that tests can take one away and see what it is for; the
product always has all of them. (Two more are the scheduler's: the chunks of a prompt and the replay of what was
dropped, provider.scheduler.prefilling.)"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from provider.backends.mlx.aside import Aside
from provider.backends.mlx.attending import Attend, EachAlone
from provider.backends.mlx.lane_sampling import sample_lane
from provider.backends.mlx.sampling import Sampler
from provider.exact.packing import Packing, PaddedLanes

Sample = Callable[[mx.array, Sequence[tuple[Sampler, int]]], mx.array]
"""Logits of some rows, and what is drawn from the first of them -> tokens."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """`rows`: on how many a pass runs; `bank_rows`: on how many the recurrence."""

    rows: int
    bank_rows: int
    packing: Packing
    attend: Attend
    sample: Sample = sample_lane


def in_lanes(rows: int, bank_rows: int, aside: Aside) -> Ingredients:
    return Ingredients(rows, bank_rows, PaddedLanes(rows), EachAlone(aside))
