"""Which providers are listed: those that have a place (roster.py), and for a while those that had one (departed.py).

Owned by the hub. A provider that is listed no more leaves what is held against it (reputation.py).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from coordinator import fleet, log, mirror
from coordinator.config import Bounds, Timings
from coordinator.departed import Departed
from coordinator.fleet import ProviderView
from coordinator.ledger import advertised, whole
from coordinator.reputation import Reputations
from coordinator.roster import Full, Roster
from coordinator.views import Views
from provider.protocol import ModelsUpdate, Register


class Registry:
    """Lives on one event loop."""

    def __init__(self, bounds: Bounds, timings: Timings, clock: Callable[[], float]) -> None:
        self._timings = timings
        self._clock = clock
        self._roster = Roster(bounds)
        self._departed = Departed()
        self._reputations = Reputations()
        self.views = Views()

    def greeting(self, owner: int) -> AbstractContextManager[Full | None]:
        """While a socket that came by that token has not said who it is."""
        return self._roster.greeting(owner)

    def place(self, message: Register, owner: int) -> Full | None:
        """Takes one for a provider that registers by that token; else why there is none, and nothing has changed."""
        return self._roster.take(message.provider_id, owner, advertised(message.models))

    def enter(self, message: Register, generation: int, drain: bool) -> None:
        """A provider that has a place is listed as connected, with what is known of it. `drain`: it is ordered to."""
        self._departed.back(message.provider_id)
        now, former = self._clock(), self.views.get(message.provider_id)
        fresh = fleet.registered(message, generation, now, former)
        known = fresh if former is not None else self._reputations.restored(fresh, now)
        self.views[message.provider_id] = fleet.drain_ordered(known, drain)

    def advertise(self, provider_id: str, message: ModelsUpdate) -> Full | None:
        """Of a provider that is connected: its list of models is another one, or nothing has changed."""
        full = self._roster.take(provider_id, self._roster.owner(provider_id), advertised(message.models))
        if full is None:
            self.views[provider_id] = mirror.eased(fleet.models_replaced(self.views[provider_id], message))
        return full

    def may_resume(self, view: ProviderView) -> bool:
        """Whether it has a place to come back to."""
        waited_s = self._clock() - view.heard_s
        return view.provider_id in self._roster and waited_s < self._timings.resume_within_s

    def retire(self, provider_id: str) -> Iterator[str]:
        """It has no place any more, and stays listed as long as there is room. Yields who is not listed any more for
        that."""
        if provider_id not in self._roster:
            return
        owner = self._roster.owner(provider_id)
        self._roster.leave(provider_id)
        for oldest in self._departed.left(provider_id, owner, whole(self.views[provider_id])):
            self._unlist(oldest)
            yield oldest

    def forget(self, provider_id: str) -> None:
        """It has been away for so long that it is not listed any more."""
        self._roster.leave(provider_id)
        self._departed.back(provider_id)
        self._unlist(provider_id)

    def _unlist(self, provider_id: str) -> None:
        self._reputations.keep(self.views[provider_id], self._clock())
        del self.views[provider_id]
        log.event("provider_forgotten", provider=provider_id)
