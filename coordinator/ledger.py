"""How much of the providers is kept, by the token that each came by and in all. Pure.

Whoever has a provider's token can come under another name every time, so whatever is kept of providers is counted for
their token.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.fleet import ProviderView
from provider.protocol import ModelAd


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


def advertised(models: Iterable[ModelAd]) -> Size:
    """Of a provider, for what it advertises."""
    told = [ad.characters for ad in models]
    return Size(1, len(told), sum(told))


def whole(view: ProviderView) -> Size:
    """Of a provider, for all that it has told."""
    notes = (*view.loads.values(), *view.prefetches.values())
    others = len(view.slots) + len(notes) + len(view.cooldowns) + len(view.breakers)
    told = sum(map(len, view.slots)) + sum(len(note.message.reason or "") for note in notes)
    return advertised(view.models.values()) + Size(0, others, told)


class Ledger:
    """Providers in the order in which they were put here."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, tuple[int, Size]] = OrderedDict()
        self._by_owner: dict[int, OrderedDict[str, None]] = {}
        self._sizes: dict[int, Size] = {}
        self.size = NOTHING

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, provider_id: str) -> bool:
        return provider_id in self._held

    def of(self, owner: int) -> Size:
        return self._sizes.get(owner, NOTHING)

    def held(self, provider_id: str) -> tuple[int, Size] | None:
        """For whom, and how much."""
        return self._held.get(provider_id)

    def put(self, provider_id: str, owner: int, size: Size) -> None:
        """As the newest."""
        self.remove(provider_id)
        self._held[provider_id] = owner, size
        self._by_owner.setdefault(owner, OrderedDict())[provider_id] = None
        self._sizes[owner] = self.of(owner) + size
        self.size += size

    def remove(self, provider_id: str) -> None:
        held = self._held.pop(provider_id, None)
        if held is None:
            return
        owner, size = held
        self.size -= size
        self._sizes[owner] -= size
        del self._by_owner[owner][provider_id]
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._sizes[owner]

    def oldest(self, owner: int | None = None) -> str:
        """Of an owner's, or of all. There is one."""
        return next(iter(self._held if owner is None else self._by_owner[owner]))
