"""What is held against providers that are not listed any more: breakers and cooldowns are a machine's, by its stable
identity, for as long as they say anything. Pure.

Only what requests have met is kept, so whoever merely dials and goes leaves nothing here.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coordinator import breaker, cooldown
from coordinator.breaker import Breaker
from coordinator.cooldown import Cooldown
from coordinator.fleet import ProviderView

MOST_PAIRS = 50_000
"""Of a provider and a model."""


@dataclass(frozen=True, slots=True)
class Reputation:
    """By model."""

    breakers: Mapping[str, Breaker]
    cooldowns: Mapping[str, Cooldown]

    @property
    def pairs(self) -> int:
        return len(self.breakers) + len(self.cooldowns)


class Reputations:
    """The oldest is given up first."""

    def __init__(self, most_pairs: int = MOST_PAIRS) -> None:
        self._most_pairs = most_pairs
        self._kept: OrderedDict[str, Reputation] = OrderedDict()
        self._pairs = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, view: ProviderView, now_s: float) -> None:
        """Of a provider that is listed no more."""
        self._take(view.provider_id)
        known = _lately(Reputation(view.breakers, view.cooldowns), now_s)
        if not known.pairs:
            return
        self._kept[view.provider_id] = known
        self._pairs += known.pairs
        while self._pairs > self._most_pairs:
            self._take(next(iter(self._kept)))

    def restored(self, fresh: ProviderView, now_s: float) -> ProviderView:
        """A provider that is listed again, with what is held against it; it is kept here no longer."""
        kept = self._take(fresh.provider_id)
        if kept is None:
            return fresh
        known = _lately(kept, now_s)
        return replace(fresh, breakers=known.breakers, cooldowns=known.cooldowns)

    def _take(self, provider_id: str) -> Reputation | None:
        kept = self._kept.pop(provider_id, None)
        self._pairs -= 0 if kept is None else kept.pairs
        return kept


def _lately(known: Reputation, now_s: float) -> Reputation:
    """Without what a further failure or refusal would not be counted to."""
    return Reputation(
        {key: one for key, one in known.breakers.items() if now_s - one.failed_s < breaker.FORGOTTEN_AFTER_S},
        {key: one for key, one in known.cooldowns.items() if now_s - one.refused_s < cooldown.FORGOTTEN_AFTER_S},
    )
