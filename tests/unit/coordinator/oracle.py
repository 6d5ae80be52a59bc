"""The routing of one provider, one scalar at a time: slow, plain, and what the columns must agree with."""

import math
from collections.abc import Iterable

from coordinator import costs, mirror
from coordinator.breaker import FAILURES
from coordinator.columns import (
    COLD_START_MS,
    LEFT_OF_LOAD_MS,
    LOAD_BYTES_PER_S,
    SLOWDOWN,
    SLOWEST_TPS,
    UNKNOWN_FIT_MS,
    UNLOAD_MS,
)
from coordinator.config import Timings
from coordinator.costs import Terms
from coordinator.fleet import Hold, Presence, ProviderView, places, presence
from coordinator.gates import Request
from coordinator.mirror import ColdLoad, TooLong
from coordinator.reasons import Reason
from coordinator.store.records import MemoryTables
from provider.protocol import ModelAd, Slot

PRESENCES = {
    Presence.LOST: Reason.LOST,
    Presence.DISCONNECTED: Reason.DISCONNECTED,
    Presence.SUSPECT: Reason.SUSPECT,
}
TOO_LONG = {
    TooLong.CONTEXT_EXCEEDED: Reason.CONTEXT_EXCEEDED,
    TooLong.PROMPT_TOO_LONG: Reason.PROMPT_TOO_LONG,
}


def verdict(
    request: Request,
    view: ProviderView,
    fleet: Iterable[ProviderView],
    now_s: float,
    timings: Timings,
    tables: MemoryTables,
) -> Reason | Terms[float]:
    """`fleet`: all providers, for the rate of one that has none depends on theirs."""
    reason = reason_of(request, view, now_s, timings, tables)
    return _terms(request, view, list(fleet), now_s) if reason is None else reason


def reason_of(
    request: Request, view: ProviderView, now_s: float, timings: Timings, tables: MemoryTables
) -> Reason | None:
    ad = view.models.get(request.model)
    if ad is None:
        return Reason.MODEL_NOT_SERVED
    if request.exact and ad.exact != "on":
        return Reason.EXACT_NOT_ON
    if request.vision and not ad.vision:
        return Reason.VISION_NOT_SERVED
    too_long = mirror.too_long(request.least_tokens, view, ad, tables)
    if too_long is not None:
        return TOO_LONG[too_long]
    here = presence(view, now_s, timings)
    if here is not Presence.ALIVE:
        return PRESENCES[here]
    slot = view.slots.get(ad.id)
    return _memory(view, ad, slot) or _shunned(request, view, ad.id, now_s) or _full(request, view, slot, now_s)


def _memory(view: ProviderView, ad: ModelAd, slot: Slot | None) -> Reason | None:
    if slot is not None and slot.state == "failed":
        return Reason.SLOT_FAILED
    if mirror.known_zero(slot):
        return Reason.NO_KV_BUDGET
    cold = slot is None or slot.state == "unloading"
    return Reason.MEMORY_CAP if cold and mirror.cold_load(view, ad) is ColdLoad.REFUSED else None


def _shunned(request: Request, view: ProviderView, model: str, now_s: float) -> Reason | None:
    if view.draining:
        return Reason.DRAINING
    cooldown, breaker = view.cooldowns.get(model), view.breakers.get(model)
    if cooldown is not None and cooldown.forbids(now_s, trying=bool(_held(model, view))):
        return Reason.COOLING
    if breaker is not None and breaker.failures >= FAILURES and breaker.forbids(now_s, trying=view.at_it(model)):
        return Reason.BREAKER_OPEN
    return Reason.TRIED if view.provider_id in request.tried else None


def _full(request: Request, view: ProviderView, slot: Slot | None, now_s: float) -> Reason | None:
    if slot is not None and slot.tokens_max and request.prompt_tokens <= slot.tokens_max <= _claimed(view, slot):
        return Reason.NO_KV_ROOM
    if now_s < view.full_until_s.get(request.model, now_s):
        return Reason.QUEUE_FULL
    slots = mirror.CONCURRENT if slot is None else slot.max_concurrency
    return Reason.QUEUE_FULL if slots and _at_work(request.model, view) >= places(slots) else None


def _terms(request: Request, view: ProviderView, fleet: list[ProviderView], now_s: float) -> Terms[float]:
    model, slot = request.model, view.slots.get(request.model)
    slots = [one.slots.get(model) if model in one.models else None for one in fleet]
    mine = [slot, *slots]
    prefill_ms = _ms_per_token([one and one.prefill_tps for one in mine], costs.PREFILL_TPS)
    decode_ms = _ms_per_token([one and one.decode_tps for one in mine], costs.DECODE_TPS)
    prefill, decode = request.prompt_tokens * prefill_ms, request.answer_tokens * decode_ms
    queued = _held_tokens(model, view) + (0 if slot is None else slot.tokens_queued)
    backlogs = queued * prefill_ms, _at_work(model, view) * decode
    return Terms(
        residency=_residency(view, view.models[model], slot, now_s),
        prefill_backlog=backlogs[0],
        decode_backlog=backlogs[1],
        prefill=prefill,
        decode=decode,
        memory_pressure=decode * _pressure(request, view, slot),
        parking=0.0 if slot is None else costs.PARKED_ANSWERS * slot.parked * decode,
        thermal=(SLOWDOWN[view.thermal] - 1) * (prefill + decode + sum(backlogs)),
        affinity=-costs.KEPT_SHARE * prefill if request.served_last == view.provider_id else 0.0,
    )


def _ms_per_token(told: list[float | None], default_tps: float) -> float:
    """Of the first, else of the fastest, else by default."""
    known = [None if one is None or not SLOWEST_TPS <= one <= 1e8 else one for one in told]
    return 1000 / (known[0] or max((one for one in known if one), default=default_tps))


def _residency(view: ProviderView, ad: ModelAd, slot: Slot | None, now_s: float) -> float:
    whole = COLD_START_MS + ad.size_bytes * 1000 / (view.load_bytes_per_s or LOAD_BYTES_PER_S)
    unsure = UNKNOWN_FIT_MS if mirror.cold_load(view, ad) is ColdLoad.UNKNOWN else 0.0
    if slot is None:
        return whole + unsure
    match slot.state:
        case "idle" | "running":
            return 0.0
        case "loading":
            since_s = view.loading_since_s.get(ad.id, math.inf)
            return max(LEFT_OF_LOAD_MS, whole - 1000 * max(0.0, now_s - since_s))
        case "unloading" | "failed":
            return whole + UNLOAD_MS + unsure


def _pressure(request: Request, view: ProviderView, slot: Slot | None) -> float:
    if slot is None or not slot.tokens_max:
        return 0.0
    wanted = _claimed(view, slot) + min(request.prompt_tokens, slot.tokens_max)
    return max(0.0, wanted / slot.tokens_max - costs.ROOMY) / (1 - costs.ROOMY)


def _claimed(view: ProviderView, slot: Slot) -> int:
    return slot.tokens_used + slot.tokens_queued + _held_tokens(slot.model, view)


def _at_work(model: str, view: ProviderView) -> int:
    slot = view.slots.get(model)
    return len(_held(model, view)) + (0 if slot is None else slot.running + slot.waiting)


def _held_tokens(model: str, view: ProviderView) -> int:
    return sum(hold.prompt_tokens for hold in _held(model, view))


def _held(model: str, view: ProviderView) -> list[Hold]:
    return [hold for hold in view.holds.values() if hold.model == model]
