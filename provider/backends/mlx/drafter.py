"""What guesses tokens ahead of the trunk. The backend asks it, verifies every guess, and tells it what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from provider.backends.mlx.forward import Image


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows [begin, end) of a pass: verified hidden states, and the tokens drawn from them, which came next.

    hidden [R, H], tokens [R]; neither may have been computed yet.
    """

    hidden: mx.array
    tokens: mx.array
    begin: int
    end: int

    def last(self, count: int) -> "Pairs":
        return Pairs(self.hidden, self.tokens, max(self.begin, self.end - count), self.end)


class Drafter(Protocol):
    """Its guesses decide how many tokens a step yields, and never which."""

    @property
    def max_drafts(self) -> int: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def weight_bytes(self) -> int:
        """Beside the trunk's."""
        ...

    def open(self, id: str) -> None: ...

    def prefilled(self, id: str, tokens: Sequence[int], hidden: mx.array) -> None:
        """A chunk went through the trunk: hidden [T, H]."""
        ...

    def note(self, id: str, pairs: Pairs) -> None:
        """The sequence went on by these."""
        ...

    def start(self, id: str, token: int) -> None:
        """A step feeds the sequence this token. Told before every step; news when it is the first after a prefill,
        whose last hidden state the token follows."""
        ...

    def begin(self, ids: Sequence[str]) -> None:
        """These will most likely be asked for drafts next: what is known of them may be worked on now."""
        ...

    def draft(self, ids: Sequence[str], count: int) -> mx.array:
        """[N, count] guesses at the next tokens of each; not computed yet."""
        ...

    def arrays(self, id: str) -> list[mx.array]:
        """What it holds for a sequence."""
        ...

    def park(self, id: str) -> Image:
        """All that is known of a sequence, with nothing of it left here; not computed yet."""
        ...

    def restore(self, id: str, image: Image) -> None: ...

    def release(self, id: str) -> None:
        """Unknown ids are ignored."""
        ...
