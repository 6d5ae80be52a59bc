"""What the backend needs of a model: passes over sequences it knows by id, ending in logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from provider.backends.base import Row


@dataclass(frozen=True, slots=True)
class Pass:
    """The positions of a pass, one sequence after the other in the order of `ids`: sum(widths) rows, and what rows lie
    behind them are padding.

    logits [R, V]; hidden [R, H] after the final norm, None where a model class does not give them.
    """

    ids: Sequence[str]
    widths: Sequence[int]
    logits: mx.array
    hidden: mx.array | None


@dataclass(frozen=True, slots=True)
class Image:
    """A sequence apart from its batch: arrays by a name of their owner's own, and numbers that stay with the host."""

    arrays: dict[str, mx.array]
    marks: list[tuple[int, int]]


class Forward(Protocol):
    """Owner of the caches of every open sequence. Nothing is evaluated until the backend does it."""

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

    def open(self, id: str) -> None: ...

    def append(self, id: str, tokens: Sequence[int]) -> mx.array | None:
        """Computes positions whose logits nobody asks for; their hidden states [T, H], as in a Pass."""
        ...

    def logits_after(self, id: str, tokens: Sequence[int]) -> tuple[mx.array, mx.array | None]:
        """As `append`, behind the logits [1, V] of the last position."""
        ...

    def fit(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The same, with fewer drafts where they would cost more than they are worth."""
        ...

    def decode(self, ids: Sequence[str], tokens: mx.array, widths: Sequence[int]) -> list[Pass]:
        """`widths[i]` positions for each sequence, fed `tokens` [sum of widths], which may not have been computed yet;
        the order, and into how many passes they go, is the model's own. With a width above 1, `keep` follows.

        Whoever takes no part stays as it is.
        """
        ...

    def keep(self, done: Sequence[Pass], lengths: Mapping[str, int]) -> None:
        """Of the passes just done, only the first `lengths` positions (1 or more) of each sequence count: all is as if
        it had had no others."""
        ...

    def arrays(self, ids: Sequence[str]) -> list[mx.array]:
        """What these sequences hold, to be evaluated together with the tokens drawn."""
        ...

    def park(self, id: str) -> Image:
        """Takes a sequence out of the batch, with nothing of it left here; not computed yet."""
        ...

    def restore(self, id: str, image: Image) -> None:
        """Takes it in again as it was."""
        ...

    def release(self, id: str) -> None:
        """Unknown ids are ignored."""
        ...
