"""What the backend needs of a model: passes over sequences it knows by id, ending in logits."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx


class Forward(Protocol):
    """Owner of the caches of every open sequence. Nothing is evaluated until the backend does it."""

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

    def open(self, id: str) -> None: ...

    def append(self, id: str, tokens: Sequence[int]) -> None:
        """Computes positions whose logits nobody asks for."""
        ...

    def logits_after(self, id: str, tokens: Sequence[int]) -> mx.array:
        """As `append`; logits [1, V] of the last position."""
        ...

    def decode(self, ids: Sequence[str], tokens: mx.array) -> tuple[Sequence[str], mx.array]:
        """One position for each sequence, fed `tokens` [B], which may not have been computed yet: the ids in an
        order of the model's own, and their logits [B, V] in that order.

        Either every sequence that decodes takes part, or only such as never did before.
        """
        ...

    def arrays(self, ids: Sequence[str]) -> list[mx.array]:
        """What these sequences hold, to be evaluated together with the tokens drawn."""
        ...

    def release(self, id: str) -> None:
        """Unknown ids are ignored."""
        ...
