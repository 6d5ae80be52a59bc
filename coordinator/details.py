"""A reason in words and numbers: what a provider's operator would have to change."""

from typing import assert_never

from coordinator import mirror
from coordinator.fleet import ProviderView
from coordinator.gates import Request
from coordinator.reasons import Reason
from coordinator.store.records import MemoryTables
from provider.memory.requirement import padded_weights
from provider.protocol import ModelAd

GIB = 2**30


def detail(reason: Reason | None, request: Request, view: ProviderView, now_s: float, tables: MemoryTables) -> str:
    """None: it can take the request."""
    ad = view.models.get(request.model)
    if ad is None:
        return f"it serves {', '.join(sorted(view.models)) or 'no model'}"
    match reason:
        case None:
            return _readiness(view, ad)
        case Reason.MODEL_NOT_SERVED:
            return "it does not advertise the model"
        case Reason.EXACT_NOT_ON:
            return f"exact concurrency is {ad.exact} there"
        case Reason.VISION_NOT_SERVED:
            return "the model takes text alone there"
        case Reason.CONTEXT_EXCEEDED:
            return f"at least {request.least_tokens} prompt tokens, a context of {ad.context_length}"
        case Reason.PROMPT_TOO_LONG:
            longest = mirror.longest_prompt(view, ad, tables)
            return f"at least {request.least_tokens} prompt tokens, room for {longest}"
        case Reason.LOST | Reason.DISCONNECTED | Reason.SUSPECT:
            return f"nothing heard for {now_s - view.heard_s:.0f} s"
        case Reason.DRAINING:
            return "an operator has ordered it" if view.drain_ordered else "the provider is ending"
        case Reason.COOLING | Reason.BREAKER_OPEN:
            return _left_alone(reason, view, ad.id, now_s)
        case Reason.MEMORY_CAP:
            return _lacking(view, ad)
        case Reason.SLOT_FAILED | Reason.NO_KV_BUDGET | Reason.TRIED | Reason.NO_KV_ROOM | Reason.QUEUE_FULL:
            return _in_use(reason, view, ad.id)
        case _:
            assert_never(reason)


def _readiness(view: ProviderView, ad: ModelAd) -> str:
    slot = view.slots.get(ad.id)
    if mirror.loaded(slot):
        return "loaded"
    if slot is not None and slot.state == "loading":
        return "being loaded"
    unsure = mirror.cold_load(view, ad) is mirror.ColdLoad.UNKNOWN
    return "to be loaded, if it fits: the provider has not said" if unsure else "to be loaded"


def _left_alone(reason: Reason, view: ProviderView, model: str, now_s: float) -> str:
    cooling, breaker = view.cooldowns.get(model), view.breakers.get(model)
    if reason is Reason.COOLING and cooling is not None:
        return f"{cooling.refusals} refusals in a row, {_again(cooling.until_s - now_s)}"
    failures = 0 if breaker is None else breaker.failures
    until_s = now_s if breaker is None else breaker.until_s
    return f"{failures} failures in a row, {_again(until_s - now_s)}"


def _again(in_s: float) -> str:
    return f"tried again in {in_s:.0f} s" if in_s > 0 else "being tried with one request"


def _lacking(view: ProviderView, ad: ModelAd) -> str:
    free = None if view.memory is None else view.memory.free_for_load_bytes
    said = f"{free / GIB:.1f} GiB are free for it" if isinstance(free, int) else "what is free for it is no number"
    return f"loading takes {padded_weights(ad.size_bytes) / GIB:.1f} GiB, {said}"


def _in_use(reason: Reason, view: ProviderView, model: str) -> str:
    slot = view.slots.get(model)
    sent = sum(hold.model == model for hold in view.holds.values())
    match reason:
        case Reason.SLOT_FAILED:
            ad = view.models.get(model)
            if ad is not None and ad.exact == "unavailable":
                return "exact mode is on there, and cannot be guaranteed for the model"
            return "its worker keeps ending"
        case Reason.NO_KV_BUDGET:
            return "loaded, with no memory left for keys and values"
        case Reason.NO_KV_ROOM if slot is not None:
            taken = slot.tokens_used + slot.tokens_queued
            return f"{taken} of {slot.tokens_max} positions taken, {sent} requests on their way"
        case Reason.QUEUE_FULL if slot is not None:
            counts = f"{slot.running} running and {slot.waiting} waiting of {slot.max_concurrency}"
            return f"{counts}, {sent} requests on their way"
        case Reason.TRIED:
            return "it has failed at this request"
        case _:
            return f"{sent} requests on their way"
