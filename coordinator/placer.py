"""Keeps models warm: looks every few seconds, and orders where this coordinator is the one that may."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from coordinator import log
from coordinator.attempts import Kind
from coordinator.config import Pace, Timings
from coordinator.endless import again
from coordinator.errors import StoreDown
from coordinator.hub import Hub
from coordinator.placement import History, Order, Placement, place
from coordinator.reference import Reference
from provider.protocol import LoadModel, PrefetchModel


class Lock(Protocol):
    async def held(self) -> bool: ...


class Placer:
    """Owned by the event loop. Those that may not order watch too, so that whoever takes over knows what was warm."""

    def __init__(
        self, hub: Hub, reference: Reference, lock: Lock, timings: Timings, pace: Pace, clock: Callable[[], float]
    ) -> None:
        self._hub = hub
        self._reference = reference
        self._lock = lock
        self._timings = timings
        self._pace = pace
        self._clock = clock
        self.placing = False
        self.placement = Placement((), History(clock()), ())

    async def run(self) -> None:
        """For ever."""
        await again(self._timings.place_s, self._take_a_turn, "placement_failed")

    async def _take_a_turn(self) -> None:
        try:
            self._lead(await self._lock.held())
            await self.look()
        except StoreDown as error:
            self._lead(False)
            log.warning("placement_lock_unknown", reason=str(error))

    async def look(self) -> None:
        """In a thread, over views as they are now: of thousands of providers it takes as long as some chunks."""
        desired = self._reference.desired
        self.placement = await asyncio.to_thread(
            place,
            () if desired is None else desired.models,
            dict(self._hub.views),
            self._clock(),
            self.placement.history,
            self._timings,
            self._reference.tables,
            self._pace,
            may_order=self.placing,
        )
        for order in self.placement.orders:
            self._send(order)
        self._hub.metrics.missing(self.placement)

    def _lead(self, placing: bool) -> None:
        if placing is not self.placing:
            log.event("placement_taken" if placing else "placement_left")
        self.placing = placing
        self._hub.metrics.placing.set(placing)

    def _send(self, order: Order) -> None:
        """One that finds nobody there counts as failed when nothing comes of it."""
        log.event("placement", order=order.kind.value, provider=order.provider_id, model=order.model.id)
        self._hub.metrics.placement_orders.labels(order.kind.value).inc()
        self._hub.tell(order.provider_id, _message(order))


def _message(order: Order) -> LoadModel | PrefetchModel:
    match order.kind:
        case Kind.LOAD:
            return LoadModel(model_id=order.model.id)
        case Kind.PREFETCH:
            return PrefetchModel(model_id=order.model.id, source=order.model.source, digest=order.model.digest)
