"""The logits that some sequences' tokens are drawn from, bit for bit."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import mlx.core as mx

from provider.backends.mlx.sampling import Sampler
from provider.generation import Sampling


class Recording:
    """To be told of every draw. A position's last draw is the one that counts: those before it lay behind a draft that
    was wrong."""

    def __init__(self, sequences: Mapping[str, Sampling]) -> None:
        """Each with a Sampling object of its own, by which it is known."""
        self._names = {id(one): name for name, one in sequences.items()}
        self._held = [*sequences.values()]
        self._rows: dict[tuple[str, int], bytes] = {}

    def __call__(self, logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> None:
        for row, (sampler, position) in enumerate(draws):
            name = self._names.get(id(sampler.sampling))
            if name is not None:
                told: Any = logits[row].astype(mx.float32)  # mlx does not declare that its arrays are buffers
                self._rows[name, position] = sha256(memoryview(told)).digest()

    def logits(self, name: str, count: int) -> list[bytes]:
        """A digest for each of the first `count` positions."""
        return [self._rows[name, position] for position in range(count)]
