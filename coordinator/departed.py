"""Providers that are away and still listed: who goes first where there are too many. Pure.

Whoever has a provider's token can come with another name every time, so what is kept of those that have left is
bounded: by token, and in all. A fleet of ten thousand providers of twenty models that a cut line takes away at once is
within the bounds of one token.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.fleet import ProviderView


@dataclass(frozen=True, slots=True)
class Size:
    """Of what is kept. `entries`: models, slots and last words; `characters`: of the texts that a provider has told."""

    providers: int
    entries: int
    characters: int

    def __add__(self, other: "Size") -> "Size":
        entries, characters = self.entries + other.entries, self.characters + other.characters
        return Size(self.providers + other.providers, entries, characters)

    def __sub__(self, other: "Size") -> "Size":
        return self + Size(-other.providers, -other.entries, -other.characters)

    def within(self, most: "Size") -> bool:
        fits = self.providers <= most.providers and self.entries <= most.entries
        return fits and self.characters <= most.characters


NOTHING = Size(0, 0, 0)
MOST_OF_A_TOKEN = Size(16_384, 300_000, 2**25)
MOST = Size(2 * 16_384, 2 * 300_000, 2**26)


def size(view: ProviderView) -> Size:
    notes = (*view.loads.values(), *view.prefetches.values())
    entries = len(view.models) + len(view.slots) + len(notes) + len(view.cooldowns) + len(view.breakers)
    told = sum(ad.characters for ad in view.models.values()) + sum(map(len, view.slots))
    return Size(1, entries, told + sum(len(note.message.reason or "") for note in notes))


class Departed:
    """The oldest first. `owner`: the token by which a provider had come."""

    def __init__(self, most_of_a_token: Size = MOST_OF_A_TOKEN, most: Size = MOST) -> None:
        self._most_of_a_token = most_of_a_token
        self._most = most
        self._owners: OrderedDict[str, tuple[int, Size]] = OrderedDict()
        self._by_owner: dict[int, OrderedDict[str, None]] = {}
        self._sizes: dict[int, Size] = {}
        self._size = NOTHING

    def __len__(self) -> int:
        return len(self._owners)

    def left(self, provider_id: str, owner: int, size: Size) -> Iterator[str]:
        """Yields those for which there is no room any more, each forgotten here when it is yielded."""
        self.back(provider_id)
        self._owners[provider_id] = owner, size
        self._by_owner.setdefault(owner, OrderedDict())[provider_id] = None
        self._sizes[owner] = self._sizes.get(owner, NOTHING) + size
        self._size += size
        while not self._sizes.get(owner, NOTHING).within(self._most_of_a_token):
            yield self._oldest(self._by_owner[owner])
        while not self._size.within(self._most):
            yield self._oldest(self._owners)

    def back(self, provider_id: str) -> None:
        """It has come back, or is listed no more."""
        owner, size = self._owners.pop(provider_id, (0, NOTHING))
        if size is NOTHING:
            return
        self._size -= size
        self._sizes[owner] -= size
        del self._by_owner[owner][provider_id]
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._sizes[owner]

    def _oldest(self, of: OrderedDict[str, None] | OrderedDict[str, tuple[int, Size]]) -> str:
        provider_id = next(iter(of))
        self.back(provider_id)
        return provider_id
