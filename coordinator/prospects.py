"""What waiting may bring: whether a request that nobody takes now should wait, and whether one that somebody would have
to load a model for should rather wait for those who have it. Pure.
"""

import numpy as np

from coordinator.config import Timings
from coordinator.fleet import ProviderView
from coordinator.reasons import BUSY, CODES, REASONS, Reason
from coordinator.routing import Chosen, Refused, Request, reasons
from coordinator.store.records import MemoryTables
from coordinator.views import Seen, Views

PASSING = BUSY | {Reason.COOLING, Reason.BREAKER_OPEN, Reason.SUSPECT}
"""What ends by itself."""
FULL = [CODES[reason] for reason in BUSY]
FIRST_BEAT_S = 1.0
"""So soon after its registration a provider's first heartbeat comes."""


def hopeful(
    request: Request, refused: Refused, views: Views, now_s: float, timings: Timings, tables: MemoryTables
) -> bool:
    """Whether anyone who has not failed at the request may come to take it."""
    if refused.beyond is not None:
        return False
    if not request.tried and not PASSING.isdisjoint(refused.counts):
        return True
    ids, codes = reasons(request, views, now_s, timings, tables)
    standing = zip(ids, codes.tolist(), strict=True)
    return any(
        code and _passing(REASONS[code - 1], views[provider_id], now_s, timings)
        for provider_id, code in standing
        if provider_id not in request.tried
    )


def _passing(reason: Reason, view: ProviderView, now_s: float, timings: Timings) -> bool:
    """One that went away without a word may be back at once; one that had said that it would leave has left."""
    if reason is Reason.DISCONNECTED:
        return not view.draining and now_s - view.heard_s < timings.away_s
    return reason in PASSING


def rather_wait(
    request: Request,
    chosen: Chosen,
    views: Views,
    waited_s: float,
    now_s: float,
    timings: Timings,
    tables: MemoryTables,
) -> bool:
    """Whether to leave it waiting although the chosen provider could load the model for it.

    Where somebody has the model and is only full, or has begun to load it, a request waits for as long as a load would
    take before it causes one: so it takes no more than twice what it would have taken had the future been known (the
    rule of ski rental). `waited_s` is also the time since the last load that was caused so, for that will serve many.
    Of a provider that has only just dialled nobody knows yet what it has loaded.
    """
    mine = views[chosen.provider_id]
    if mine.capacity_seq is None and now_s - mine.heard_s < FIRST_BEAT_S:
        return True
    if not cold(mine, request.model) or waited_s >= chosen.terms.residency / 1000.0:
        return False
    seen = views.seen(request.model, tables)
    assert seen is not None, "somebody who serves it was chosen"
    if any(one not in request.tried for one in _loading(seen, views, request.model)):
        return not _begun(mine, request.model)
    _, codes = reasons(request, views, now_s, timings, tables)
    full = np.flatnonzero(np.isin(codes, FULL) & (seen.own.residency_ms == 0))
    return any(seen.ids[row] not in request.tried for row in full.tolist())


def eta_s(model: str, views: Views, tables: MemoryTables, now_s: float) -> float | None:
    """When a load that is under way is predicted to be done; None when there is none."""
    seen = views.seen(model, tables)
    if seen is None:
        return None
    rows = [seen.rows[one] for one in _loading(seen, views, model)]
    left = [max(seen.own.residency_ms.item(row), seen.own.ready_at_ms.item(row) - 1000.0 * now_s) for row in rows]
    return max(0.0, min(left) / 1000.0) if left else None


def _loading(seen: Seen, views: Views, model: str) -> list[str]:
    """Who has begun to load it; of thousands of providers, few are looked at."""
    own = seen.own
    rows = np.flatnonzero((own.residency_ms > 0) & ((own.ready_at_ms > -np.inf) | (own.at_work > 0)))
    return [seen.ids[row] for row in rows.tolist() if _begun(views[seen.ids[row]], model)]


def cold(view: ProviderView, model: str) -> bool:
    """Whether a request would have the provider load the model."""
    slot = view.slots.get(model)
    return slot is None or slot.state == "unloading"


def _begun(view: ProviderView, model: str) -> bool:
    """It loads the model, or has been sent a request for which it will."""
    if not view.connected:
        return False
    slot = view.slots.get(model)
    return (slot is not None and slot.state == "loading") or (cold(view, model) and view.at_it(model))
