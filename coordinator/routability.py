"""What each provider is told of itself: which of its models get requests, and why not the others.

Once a second all are looked at; whoever's verdicts differ from what it was told last is told all of them. A change that
is gone within that second is never told, and nobody is waited for.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from coordinator import routing
from coordinator.config import Timings
from coordinator.details import detail
from coordinator.endless import again
from coordinator.gates import Request
from coordinator.reasons import REASONS
from coordinator.store.records import MemoryTables
from coordinator.tables import NEVER_TOLD
from coordinator.views import Views
from provider.protocol import Routability, Routable

EVERY_S = 1.0


class Hub(Protocol):
    """`tell` sends a message without waiting; False where the provider is away."""

    @property
    def views(self) -> Views: ...

    def tell(self, provider_id: str, order: Routability) -> bool: ...


class Teller:
    """Owned by the event loop."""

    def __init__(
        self, hub: Hub, timings: Timings, tables: Callable[[], MemoryTables], clock: Callable[[], float]
    ) -> None:
        self._hub = hub
        self._timings = timings
        self._tables = tables
        self._clock = clock

    async def run(self) -> None:
        """For ever."""

        async def look() -> None:
            self.look()

        await again(EVERY_S, look, "routability_failed")

    def look(self) -> int:
        """How many were told."""
        now_s, tables = self._clock(), self._tables()
        changed: dict[str, None] = {}
        for model in self._hub.views.models:
            ids, codes = routing.reasons(Request(model, prompt_tokens=0), self._hub.views, now_s, self._timings, tables)
            told = self._hub.views.told(model)
            for row in np.flatnonzero(codes != told).tolist():
                changed[ids[row]] = None
            told[:] = codes
        return sum(self._tell_one(provider_id, now_s, tables) for provider_id in changed)

    def _tell_one(self, provider_id: str, now_s: float, tables: MemoryTables) -> bool:
        """Of one that is away nothing is kept: it is told afresh when it is back, for its rows are new then."""
        view = self._hub.views[provider_id]
        if not view.connected:
            return False
        models = {}
        for model in view.models:
            code = self._hub.views.told_of(model, provider_id)
            reason = REASONS[code - 1] if 0 < code < NEVER_TOLD else None
            said = None if reason is None else detail(reason, Request(model, prompt_tokens=0), view, now_s, tables)
            models[model] = Routable(routable=reason is None, reason=reason, detail=said)
        return self._hub.tell(provider_id, Routability(models=models))
