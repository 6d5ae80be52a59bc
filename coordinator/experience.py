"""What attempts have shown of the providers, held against them in their views until it is forgotten or made good."""

from collections.abc import Callable

from coordinator import breaker, cooldown, fleet, log, mirror
from coordinator.breaker import BreakerState, Served, Witness
from coordinator.metrics import Metrics
from coordinator.views import Views


class Experience:
    """Owned by the event loop. A provider that is not known any more has nothing held against it."""

    def __init__(self, views: Views, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._views = views
        self._metrics = metrics
        self._clock = clock
        self._served = Served()

    def full(self, provider_id: str, model: str, for_s: float) -> None:
        """The provider has refused for want of a place to wait: it is not asked again at once."""
        view = self._views.get(provider_id)
        if view is not None:
            self._views[provider_id] = fleet.full(view, model, self._clock() + for_s)

    def refused(self, provider_id: str, model: str) -> None:
        """The provider has refused for want of capacity: that counts against it unless it is seen to be full."""
        view = self._views.get(provider_id)
        if view is None or mirror.crowded(view, model):
            return
        now, known = self._clock(), view.cooldowns.get(model)
        cooling = cooldown.refused(known, mirror.capacity(view, model), now)
        self._views[provider_id] = fleet.cooled(view, model, cooling)
        if cooling is not known and cooling.active(now):
            self._metrics.cooldowns.inc()
            for_s = cooling.until_s - now
            log.warning("capacity_cooldown", provider=provider_id, model=model, refusals=cooling.refusals, for_s=for_s)

    def failed(self, provider_id: str, model: str, witness: Witness) -> None:
        """A request has failed there, and the provider may be to blame."""
        view = self._views.get(provider_id)
        if view is None:
            return
        now, known = self._clock(), view.breakers.get(model)
        broken = breaker.failed(known, now, witness, self._served.others(provider_id, model, witness.key, now))
        if broken is known:
            return
        self._views[provider_id] = fleet.failed(view, model, broken)
        if broken.state(now) is BreakerState.OPEN:
            self._metrics.breakers_opened.inc()
            for_s = broken.until_s - now
            log.warning("breaker_opened", provider=provider_id, model=model, failures=broken.failures, for_s=for_s)

    def succeeded(self, provider_id: str, model: str, key: int) -> None:
        """A request of that key's."""
        self._served.note(provider_id, model, key, self._clock())
        view = self._views.get(provider_id)
        if view is None or model not in view.breakers:
            return
        if view.breakers[model].state(self._clock()) is not BreakerState.CLOSED:
            log.event("breaker_closed", provider=provider_id, model=model)
        self._views[provider_id] = fleet.succeeded(view, model)
