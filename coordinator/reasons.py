"""Why a provider cannot take a request: a closed set, in the order in which the gates are asked."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a provider cannot take a request now, the furthest from taking it first. Of several, the first is given."""

    MODEL_NOT_SERVED = "model_not_served"
    EXACT_NOT_ON = "exact_not_on"
    """The request asks for exact concurrency, and the model does not have it there."""
    VISION_NOT_SERVED = "vision_not_served"
    """The request has pictures, and the model sees none there."""
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
    """Full, and it is the slots that are taken."""

    @property
    def nearness(self) -> int:
        return CODES[self]


BUSY = frozenset({Reason.NO_KV_ROOM, Reason.QUEUE_FULL})
"""Full for the moment, whatever else."""
REASONS = tuple(Reason)
CODES = {reason: number for number, reason in enumerate(REASONS, start=1)}
"""In columns a reason is its number; 0 is none."""
