"""Which provider takes a request: pure, and with one closed reason for each that cannot."""

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from coordinator.config import Timings
from coordinator.fleet import Presence, ProviderView, presence
from provider.protocol import Slot


class Reason(StrEnum):
    """Why a provider cannot take a request now, the furthest from taking it first."""

    MODEL_NOT_SERVED = "model_not_served"
    LOST = "provider_lost"
    DISCONNECTED = "provider_disconnected"
    SUSPECT = "provider_suspect"
    SLOT_FAILED = "slot_failed"
    DRAINING = "provider_draining"
    UNLOADING = "slot_unloading"
    TRIED = "already_tried"
    """It has failed at this very request."""
    NO_KV_ROOM = "no_kv_room"
    """Full, and it is the KV pool that lacks room."""
    QUEUE_FULL = "queue_full"
    """Full, and it is the slots that are taken."""

    @property
    def nearness(self) -> int:
        return list(Reason).index(self)


BUSY = frozenset({Reason.NO_KV_ROOM, Reason.QUEUE_FULL})
PRESENCES = {
    Presence.LOST: Reason.LOST,
    Presence.DISCONNECTED: Reason.DISCONNECTED,
    Presence.SUSPECT: Reason.SUSPECT,
}


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt_tokens` is a lower bound: nobody is refused for an estimate."""

    model: str
    prompt_tokens: int
    tried: Collection[str] = frozenset()


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Compared in this order: room before none, warm before cold, then the least loaded."""

    busy: bool
    cold: bool
    load: float
    """Requests at the provider, running, waiting or sent, per slot."""


@dataclass(frozen=True, slots=True)
class Chosen:
    provider_id: str
    cost: Cost


@dataclass(frozen=True, slots=True)
class Refused:
    """`reasons` by provider; `reason` is the one nearest to a yes, None when the fleet is empty."""

    reasons: Mapping[str, Reason]

    @property
    def reason(self) -> Reason | None:
        return max(self.reasons.values(), key=lambda reason: reason.nearness, default=None)

    @property
    def listed(self) -> bool:
        """Whether anyone at all serves the model."""
        return any(reason is not Reason.MODEL_NOT_SERVED for reason in self.reasons.values())


def route(
    request: Request, views: Iterable[ProviderView], now_s: float, rng: random.Random, timings: Timings
) -> Chosen | Refused:
    """The provider of least cost, equals at random; every other provider has a cost or a reason."""
    reasons: dict[str, Reason] = {}
    candidates: list[Chosen] = []
    for view in views:
        match judge(request, view, now_s, timings):
            case Reason() as reason:
                reasons[view.provider_id] = reason
            case Cost() as cost:
                candidates.append(Chosen(view.provider_id, cost))
    if not candidates:
        return Refused(reasons)
    least = min(candidate.cost for candidate in candidates)
    return rng.choice([candidate for candidate in candidates if candidate.cost == least])


def judge(request: Request, view: ProviderView, now_s: float, timings: Timings) -> Cost | Reason:
    """What it costs this provider to take the request, or why it cannot."""
    slot = view.slots.get(request.model)
    reason = _unfit(request, view, slot, now_s, timings)
    if reason is not None:
        return reason
    crowded = _crowded(request, view, slot)
    if crowded is not None and now_s < view.full_until_s.get(request.model, now_s):
        return crowded
    cold = slot is None or slot.state == "loading"
    return Cost(crowded is not None, cold, _at_work(request.model, view, slot) / _slots(slot))


def _unfit(request: Request, view: ProviderView, slot: Slot | None, now_s: float, timings: Timings) -> Reason | None:
    if request.model not in view.models:
        return Reason.MODEL_NOT_SERVED
    here = presence(view, now_s, timings)
    if here is not Presence.ALIVE:
        return PRESENCES[here]
    if slot is not None and slot.state == "failed":
        return Reason.SLOT_FAILED
    if view.draining:
        return Reason.DRAINING
    if slot is not None and slot.state == "unloading":
        return Reason.UNLOADING
    return Reason.TRIED if view.provider_id in request.tried else None


def _crowded(request: Request, view: ProviderView, slot: Slot | None) -> Reason | None:
    """The provider would let the request wait. What it has not told (0) does not count against it."""
    if slot is None:
        return None
    wanted = slot.tokens_used + slot.tokens_queued + _held_tokens(request.model, view) + request.prompt_tokens
    # A prompt that never fits is for the provider to refuse, with the numbers.
    if slot.tokens_max and request.prompt_tokens <= slot.tokens_max < wanted:
        return Reason.NO_KV_ROOM
    if slot.max_concurrency and _at_work(request.model, view, slot) >= slot.max_concurrency:
        return Reason.QUEUE_FULL
    return None


def _at_work(model: str, view: ProviderView, slot: Slot | None) -> int:
    reported = 0 if slot is None else slot.running + slot.waiting
    return reported + sum(hold.model == model for hold in view.holds.values())


def _held_tokens(model: str, view: ProviderView) -> int:
    return sum(hold.prompt_tokens for hold in view.holds.values() if hold.model == model)


def _slots(slot: Slot | None) -> int:
    return max(1, slot.max_concurrency) if slot is not None else 1
