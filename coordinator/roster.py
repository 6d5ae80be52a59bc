"""Who has a place here: the providers that are connected, and those that may still come back to their answers. Pure.

Their number and what they advertise are bounded, by token and in all. Whoever has a place keeps it, comes back to it,
and is never put out for somebody else: a newcomer for whom there is none is turned away.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from coordinator.config import Bounds
from coordinator.ledger import NOTHING, Ledger, Size

MODELS_EACH = 25
"""On average, of the fleet of a token and of all: machines hold a few at a time, and advertise tens at most."""
CHARACTERS_EACH = 128 * MODELS_EACH
SPARE_MODELS, SPARE_CHARACTERS = 1024, 2**20
"""So that of a small number of providers one may have many."""


class Full(StrEnum):
    """Why there is no place: of what there is too much already, or that it is another's."""

    TOKEN_PROVIDERS = "token_providers"
    TOKEN_MODELS = "token_models"
    ALL_PROVIDERS = "all_providers"
    ALL_MODELS = "all_models"
    OTHER_TOKEN = "other_token"
    """The provider is connected, by another token than this one."""


class Roster:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._of_a_token, self._in_all = _most(bounds.of_a_token), _most(bounds.in_all)
        self._ledger = Ledger()
        self._greeting: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._ledger)

    def __contains__(self, provider_id: str) -> bool:
        return provider_id in self._ledger

    def owner(self, provider_id: str) -> int:
        """Of a provider that has a place: the token that it came by last."""
        held = self._ledger.held(provider_id)
        assert held is not None, "it has a place"
        return held[0]

    @contextmanager
    def greeting(self, owner: int) -> Iterator[Full | None]:
        """While a socket has not said who it is. As many as there are places, beside those: a whole fleet may dial at
        once, and whoever comes back to its place does so by another socket."""
        full = self._crowd(owner)
        self._greeting[owner] += 1
        try:
            yield full
        finally:
            self._greeting[owner] -= 1
            if not self._greeting[owner]:
                del self._greeting[owner]

    def take(self, provider_id: str, owner: int, size: Size) -> Full | None:
        """A place, or more of the one that it has; else why there is none, and nothing has changed."""
        full = self._full(provider_id, owner, size)
        if full is None:
            self._ledger.put(provider_id, owner, size)
        return full

    def leave(self, provider_id: str) -> None:
        """It will not come back to its place."""
        self._ledger.remove(provider_id)

    def _full(self, provider_id: str, owner: int, size: Size) -> Full | None:
        by, had = self._ledger.held(provider_id) or (owner, NOTHING)
        if by == owner and size.within(had):
            return None
        theirs = self._ledger.of(owner) - (had if by == owner else NOTHING) + size
        if not theirs.within(self._of_a_token):
            return Full.TOKEN_PROVIDERS if theirs.providers > self._of_a_token.providers else Full.TOKEN_MODELS
        every = self._ledger.size - had + size
        if not every.within(self._in_all):
            return Full.ALL_PROVIDERS if every.providers > self._in_all.providers else Full.ALL_MODELS
        return None

    def _crowd(self, owner: int) -> Full | None:
        if self._greeting[owner] >= self._bounds.of_a_token:
            return Full.TOKEN_PROVIDERS
        return Full.ALL_PROVIDERS if self._greeting.total() >= self._bounds.in_all else None


def _most(providers: int) -> Size:
    models, characters = MODELS_EACH * providers, CHARACTERS_EACH * providers
    return Size(providers, models + SPARE_MODELS, characters + SPARE_CHARACTERS)
