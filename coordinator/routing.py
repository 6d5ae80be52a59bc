"""Which provider takes a request: pure, and with one closed reason for each that cannot."""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from coordinator import mirror
from coordinator.config import Timings
from coordinator.fleet import Hold, Presence, ProviderView, places, presence
from coordinator.mirror import CONCURRENT, ColdLoad, TooLong
from coordinator.store.records import MemoryTables
from provider.protocol import ModelAd, Slot


class Reason(StrEnum):
    """Why a provider cannot take a request now, the furthest from taking it first."""

    MODEL_NOT_SERVED = "model_not_served"
    CONTEXT_EXCEEDED = "context_exceeded"
    """The prompt is longer than its context."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt is longer than all its room for keys and values."""
    LOST = "provider_lost"
    DISCONNECTED = "provider_disconnected"
    SUSPECT = "provider_suspect"
    SLOT_FAILED = "slot_failed"
    NO_KV_BUDGET = "no_kv_budget"
    """Loaded, and left with no room for keys and values at all."""
    MEMORY_CAP = "memory_cap"
    """Not loaded, and the weights would not fit."""
    DRAINING = "provider_draining"
    COOLING = "capacity_cooldown"
    """It has kept refusing this model for want of capacity."""
    BREAKER_OPEN = "circuit_open"
    """Its requests for this model have kept failing."""
    TRIED = "already_tried"
    """It has failed at this very request."""
    NO_KV_ROOM = "no_kv_room"
    """Full, and it is the KV pool that lacks room."""
    QUEUE_FULL = "queue_full"
    """Full, and it is the slots that are taken, and the few places in line behind them."""

    @property
    def nearness(self) -> int:
        return list(Reason).index(self)


BUSY = frozenset({Reason.NO_KV_ROOM, Reason.QUEUE_FULL})
PRESENCES = {
    Presence.LOST: Reason.LOST,
    Presence.DISCONNECTED: Reason.DISCONNECTED,
    Presence.SUSPECT: Reason.SUSPECT,
}


TOO_LONG = {
    TooLong.CONTEXT_EXCEEDED: Reason.CONTEXT_EXCEEDED,
    TooLong.PROMPT_TOO_LONG: Reason.PROMPT_TOO_LONG,
}


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt_tokens` is an estimate, for which nobody is refused; `least_tokens` is a bound from below."""

    model: str
    prompt_tokens: int
    tried: Collection[str] = frozenset()
    least_tokens: int = 0


class Readiness(IntEnum):
    """How far a provider is from serving the model; the nearest first."""

    LOADED = 0
    LOADING = 1
    LOADABLE = 2
    UNKNOWN = 3
    """Whether it could be loaded, only the provider can tell."""
    UNLOADING = 4


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Compared in this order: room before none, then what is loaded or soon will be, then who parks nobody, then the
    least loaded."""

    busy: bool
    readiness: Readiness
    parking: bool
    """Some of its chats have no room now: a new one would stand behind them."""
    load: float
    """Requests at the provider, running, waiting or sent, per slot."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Nobody in the fleet can ever serve so long a prompt; `longest_tokens` is what the best of them could."""

    reason: TooLong
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class Chosen:
    provider_id: str
    cost: Cost


@dataclass(frozen=True, slots=True)
class Refused:
    """`reasons` by provider; `reason` is the one nearest to a yes, None when the fleet is empty. `beyond`: no waiting
    would help."""

    reasons: Mapping[str, Reason]
    beyond: Beyond | None = None

    @property
    def reason(self) -> Reason | None:
        return max(self.reasons.values(), key=lambda reason: reason.nearness, default=None)

    @property
    def listed(self) -> bool:
        """Whether anyone at all serves the model."""
        return any(reason is not Reason.MODEL_NOT_SERVED for reason in self.reasons.values())


def route(
    request: Request,
    views: Collection[ProviderView],
    now_s: float,
    rng: random.Random,
    timings: Timings,
    tables: MemoryTables,
) -> Chosen | Refused:
    """The provider of least cost, equals at random; every other provider has a cost or a reason."""
    reasons: dict[str, Reason] = {}
    candidates: list[Chosen] = []
    for view in views:
        match judge(request, view, now_s, timings, tables):
            case Reason() as reason:
                reasons[view.provider_id] = reason
            case Cost() as cost:
                candidates.append(Chosen(view.provider_id, cost))
    if not candidates:
        return Refused(reasons, _beyond(request, views, tables))
    least = min(candidate.cost for candidate in candidates)
    return rng.choice([candidate for candidate in candidates if candidate.cost == least])


def judge(request: Request, view: ProviderView, now_s: float, timings: Timings, tables: MemoryTables) -> Cost | Reason:
    """What it costs this provider to take the request, or why it cannot."""
    ad = view.models.get(request.model)
    if ad is None:
        return Reason.MODEL_NOT_SERVED
    reason = _unfit(request, view, ad, now_s, timings, tables)
    if reason is not None:
        return reason
    slot = view.slots.get(request.model)
    full = _full(request, view, slot, now_s)
    if full is not None:
        return full
    return Cost(
        busy=_in_line(request, view, slot),
        readiness=_readiness(view, ad, slot),
        parking=slot is not None and slot.parked > 0,
        load=_at_work(request.model, view, slot) / _slots(slot),
    )


def _unfit(
    request: Request, view: ProviderView, ad: ModelAd, now_s: float, timings: Timings, tables: MemoryTables
) -> Reason | None:
    slot = view.slots.get(request.model)
    here = presence(view, now_s, timings)
    if here is not Presence.ALIVE:
        return PRESENCES[here]
    too_long = mirror.too_long(request.least_tokens, view, ad, tables)
    if too_long is not None:
        return TOO_LONG[too_long]
    reason = _memory(view, ad, slot)
    if reason is not None:
        return reason
    if view.draining:
        return Reason.DRAINING
    cooldown = view.cooldowns.get(request.model)
    if cooldown is not None and cooldown.forbids(now_s, trying=bool(_held(request.model, view))):
        return Reason.COOLING
    breaker = view.breakers.get(request.model)
    if breaker is not None and breaker.forbids(now_s, trying=view.at_it(request.model)):
        return Reason.BREAKER_OPEN
    return Reason.TRIED if view.provider_id in request.tried else None


def _memory(view: ProviderView, ad: ModelAd, slot: Slot | None) -> Reason | None:
    if slot is not None and slot.state == "failed":
        return Reason.SLOT_FAILED
    if mirror.known_zero(slot):
        return Reason.NO_KV_BUDGET
    cold = slot is None or slot.state == "unloading"
    return Reason.MEMORY_CAP if cold and mirror.cold_load(view, ad) is ColdLoad.REFUSED else None


def _readiness(view: ProviderView, ad: ModelAd, slot: Slot | None) -> Readiness:
    if slot is None:
        admitted = mirror.cold_load(view, ad) is ColdLoad.ADMITTED
        return Readiness.LOADABLE if admitted else Readiness.UNKNOWN
    match slot.state:
        case "idle" | "running":
            return Readiness.LOADED
        case "loading":
            return Readiness.LOADING
        case "unloading" | "failed":
            return Readiness.UNLOADING


def _beyond(request: Request, views: Collection[ProviderView], tables: MemoryTables) -> Beyond | None:
    """Only when everyone who serves the model is known to be too small, whoever is here or away now."""
    serving = [(view, view.models[request.model]) for view in views if request.model in view.models]
    verdicts = {mirror.too_long(request.least_tokens, view, ad, tables) for view, ad in serving}
    if not verdicts or None in verdicts:
        return None
    reason = TooLong.PROMPT_TOO_LONG if TooLong.PROMPT_TOO_LONG in verdicts else TooLong.CONTEXT_EXCEEDED
    return Beyond(reason, max(mirror.longest_prompt(view, ad, tables) for view, ad in serving))


def _full(request: Request, view: ProviderView, slot: Slot | None, now_s: float) -> Reason | None:
    """What it has not told (0) does not count against it."""
    if now_s < view.full_until_s.get(request.model, now_s):
        return Reason.QUEUE_FULL
    if slot is None:
        return Reason.QUEUE_FULL if _at_work(request.model, view, slot) >= places(CONCURRENT) else None
    # A prompt that never fits is for the provider to refuse, with the numbers.
    if slot.tokens_max and request.prompt_tokens <= slot.tokens_max <= _claimed(request, view, slot):
        return Reason.NO_KV_ROOM
    if slot.max_concurrency and _at_work(request.model, view, slot) >= places(slot.max_concurrency):
        return Reason.QUEUE_FULL
    return None


def _in_line(request: Request, view: ProviderView, slot: Slot | None) -> bool:
    """Whether it would have to wait at the provider."""
    if slot is None:
        return False
    if (
        slot.tokens_max
        and request.prompt_tokens <= slot.tokens_max < _claimed(request, view, slot) + request.prompt_tokens
    ):
        return True
    return 0 < slot.max_concurrency <= _at_work(request.model, view, slot)


def _claimed(request: Request, view: ProviderView, slot: Slot) -> int:
    return slot.tokens_used + slot.tokens_queued + _held_tokens(request.model, view)


def _at_work(model: str, view: ProviderView, slot: Slot | None) -> int:
    reported = 0 if slot is None else slot.running + slot.waiting
    return reported + len(_held(model, view))


def _held_tokens(model: str, view: ProviderView) -> int:
    return sum(hold.prompt_tokens for hold in _held(model, view))


def _held(model: str, view: ProviderView) -> list[Hold]:
    return [hold for hold in view.holds.values() if hold.model == model]


def _slots(slot: Slot | None) -> int:
    return max(1, slot.max_concurrency) if slot is not None else 1
