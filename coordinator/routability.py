"""What each provider is told of itself: which of its models get requests, and why not the others.

Once a second all are looked at, a few models at a time; whoever's verdicts differ from what it was told last is told
all of them. A change that is gone within that second is never told, and nobody is waited for.
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
from coordinator.turns import Turns
from coordinator.views import Views
from provider.protocol import Routability, Routable

EVERY_S = 1.0
REST_S = 0.004
"""Between two turns of a look: of a processor it takes a fifth at most, however many models there are."""


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
        await again(EVERY_S, self.look, "routability_failed")

    async def look(self) -> None:
        """Who is away is told afresh when it is back, for its rows are new then."""
        turns = Turns(rest_s=REST_S)
        changed: dict[str, None] = {}
        for model in self._hub.views.present:
            changed |= dict.fromkeys(self._changed(model))
            await turns.taken()
        for provider_id in changed:
            await self._tell_one(provider_id, turns)

    def _changed(self, model: str) -> list[str]:
        """Whose verdict is not what it was told last; noted as told."""
        now_s, tables, views = self._clock(), self._tables(), self._hub.views
        ids, codes = routing.reasons(Request(model, prompt_tokens=0), views, now_s, self._timings, tables)
        if not ids:
            return []
        told = views.told(model)
        changed = [ids[row] for row in np.flatnonzero(codes != told).tolist()]
        told[:] = codes
        return changed

    async def _tell_one(self, provider_id: str, turns: Turns) -> None:
        """A model that is gone when it is the turn of it is left out; one that has come is told of at the next look."""
        view = self._hub.views.get(provider_id)
        if view is None or not view.connected:
            return
        now_s, tables = self._clock(), self._tables()
        models = {}
        for model in view.models:
            code = self._hub.views.told_of(model, provider_id)
            if code is None:
                continue
            reason = REASONS[code - 1] if 0 < code < NEVER_TOLD else None
            said = None if reason is None else detail(reason, Request(model, prompt_tokens=0), view, now_s, tables)
            models[model] = Routable(routable=reason is None, reason=reason, detail=said)
            await turns.taken()
        self._hub.tell(provider_id, Routability(models=models))
