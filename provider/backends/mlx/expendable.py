"""A drafter that its backend can do without: what it raises ends the drafting, and nothing else.

Whatever a drafter was in the middle of stays its own: keys and values of its own, hidden states, guesses. Once it has
raised it is not asked again, so none of that is ever used, and the trunk's state is as it is without drafts.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

from provider.backends.mlx.drafter import Drafter, Pairs
from provider.backends.mlx.forward import Image

log = logging.getLogger(__name__)

MOST_DETAIL = 300
Told = TypeVar("Told")


class Expendable:
    """As provider.backends.mlx.drafter.Drafter, of one that may be nobody. `failure`: what it raised."""

    def __init__(self, drafter: Drafter | None = None) -> None:
        self.drafter = drafter
        self.failure: str | None = None

    @property
    def max_drafts(self) -> int:
        return 0 if self.drafter is None else self.drafter.max_drafts

    @property
    def kv_bytes_per_token(self) -> int:
        return 0 if self.drafter is None else self.drafter.kv_bytes_per_token

    @property
    def weight_bytes(self) -> int:
        return 0 if self.drafter is None else self.drafter.weight_bytes

    def open(self, id: str) -> None:
        self._ask(lambda drafter: drafter.open(id), None)

    def prefilled(self, id: str, tokens: Sequence[int], hidden: mx.array) -> None:
        self._ask(lambda drafter: drafter.prefilled(id, tokens, hidden), None)

    def note(self, id: str, pairs: Pairs) -> None:
        self._ask(lambda drafter: drafter.note(id, pairs), None)

    def start(self, id: str, token: int) -> None:
        self._ask(lambda drafter: drafter.start(id, token), None)

    def begin(self, ids: Sequence[str]) -> None:
        self._ask(lambda drafter: drafter.begin(ids), None)

    def draft(self, ids: Sequence[str], count: int) -> mx.array | None:
        """Guesses that are being computed; None: there are none to be had."""
        return self._ask(lambda drafter: _begun(drafter.draft(ids, count)), None)

    def arrays(self, id: str) -> list[mx.array]:
        return self._ask(lambda drafter: drafter.arrays(id), [])

    def park(self, id: str) -> Image:
        return self._ask(lambda drafter: drafter.park(id), Image({}, []))

    def restore(self, id: str, image: Image) -> None:
        self._ask(lambda drafter: drafter.restore(id, image), None)

    def release(self, id: str) -> None:
        self._ask(lambda drafter: drafter.release(id), None)

    def _ask(self, act: Callable[[Drafter], Told], without: Told) -> Told:
        if self.drafter is None:
            return without
        try:
            return act(self.drafter)
        except Exception as error:  # whatever it is: not a reason to lose an answer
            log.exception("mtp_drafting_failed")
            self.failure = f"{type(error).__name__}: {error}"[:MOST_DETAIL]
            self.drafter = None
            return without


def _begun(drafts: mx.array) -> mx.array:
    """Apart from the pass that is to verify them, so that what goes wrong in computing them goes wrong here."""
    mx.async_eval(drafts)
    return drafts
