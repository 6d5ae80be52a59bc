"""Who cannot take a request, and why: the gates, in the order of coordinator.reasons, over whole columns."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.columns import Floats, Place
from coordinator.config import Timings
from coordinator.estimates import ANSWER_TOKENS
from coordinator.reasons import CODES, Reason
from coordinator.tables import Machines

Codes = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Numbers of reasons, by row; 0 is none."""
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt_tokens` and `answer_tokens` are estimates, for which nobody is refused; `least_tokens` is a bound from
    below."""

    model: str
    prompt_tokens: int
    tried: Collection[str] = frozenset()
    least_tokens: int = 0
    answer_tokens: int = ANSWER_TOKENS
    exact: bool = False
    vision: bool = False
    served_last: str | None = None
    """The provider that answered this conversation before."""
    name: str = ""
    """For logs: the id that its client knows it by."""


def able(
    request: Request,
    own: Place[Floats],
    machine: Machines,
    tried: Sequence[int],
    now_s: float,
    timings: Timings,
) -> Mask:
    """Whoever no gate is closed for: where `codes` says 0, in fewer steps. `tried` are rows."""
    found = own.shut_until_s <= now_s
    found &= machine.open_s > now_s - timings.suspect_after_s
    found &= own.longest >= request.least_tokens
    found &= own.full_for < request.prompt_tokens
    found &= ~(machine.free_bytes < own.load_needs_bytes)
    too_long = _too_long_by_estimate(request.least_tokens, own, machine)
    if too_long is not None:
        found &= ~too_long
    if request.vision:
        found &= own.vision > 0
    if request.exact:
        found &= own.exact > 0
    for row in tried:
        found[row] = False
    return found


def codes(
    request: Request,
    own: Place[Floats],
    machine: Machines,
    tried: Sequence[int],
    now_s: float,
    timings: Timings,
) -> Codes:
    """0 for those who can, else the number of the reason. Written from the last gate to the first, so that the first
    stands."""
    found = np.zeros(len(own.state_gate), np.uint8)
    _put(found, (own.full_until_s > now_s) | (own.at_work >= own.places), Reason.QUEUE_FULL)
    # A prompt that never fits is for the provider to refuse, with the numbers; one that fits later waits.
    _put(found, own.full_for >= request.prompt_tokens, Reason.NO_KV_ROOM)
    for row in tried:
        found[row] = CODES[Reason.TRIED]
    _put(found, own.broken_until_s > now_s, Reason.BREAKER_OPEN)
    _put(found, own.cooling_until_s > now_s, Reason.COOLING)
    _put(found, machine.draining > 0, Reason.DRAINING)
    _put(found, machine.free_bytes < own.load_needs_bytes, Reason.MEMORY_CAP)
    np.copyto(found, own.state_gate, casting="unsafe", where=own.state_gate > 0)
    heard_s = machine.heard_s
    _put(found, heard_s <= now_s - timings.suspect_after_s, Reason.SUSPECT)
    _put(found, machine.connected == 0, Reason.DISCONNECTED)
    _put(found, heard_s <= now_s - timings.lost_after_s, Reason.LOST)
    put_too_long(found, request.least_tokens, own, machine)
    if request.vision:
        _put(found, own.vision == 0, Reason.VISION_NOT_SERVED)
    if request.exact:
        _put(found, own.exact == 0, Reason.EXACT_NOT_ON)
    return found


def put_too_long(found: Codes, least_tokens: int, own: Place[Floats], machine: Machines) -> None:
    """Those that could never serve so long a prompt."""
    _put(found, own.room < least_tokens, Reason.PROMPT_TOO_LONG)
    by_estimate = _too_long_by_estimate(least_tokens, own, machine)
    if by_estimate is not None:
        _put(found, by_estimate, Reason.PROMPT_TOO_LONG)
    _put(found, own.context <= least_tokens, Reason.CONTEXT_EXCEEDED)


def longest_prompts(own: Place[Floats], machine: Machines) -> Floats:
    """The bound that a prompt is held against; 0 where none is known."""
    budget = estimated_budget(own, machine)
    estimated = np.where(budget > 0, np.maximum(budget, own.least_room), np.inf)
    room = np.where(np.isfinite(own.least_room), estimated, own.room)
    bound = np.minimum(room, own.context)
    return np.where(np.isfinite(bound), bound, 0.0)


def estimated_budget(own: Place[Floats], machine: Machines) -> Floats:
    """mirror.token_budget of what is not loaded, where `least_room` is finite; of no meaning elsewhere."""
    floor = np.minimum(own.floor_bytes, machine.reserve_bytes)
    left = np.maximum(machine.cap_bytes - own.weights_bytes - floor, 0.0)
    return np.floor_divide(left, own.kv_bytes)


def _too_long_by_estimate(least_tokens: int, own: Place[Floats], machine: Machines) -> Mask | None:
    """None: of nobody."""
    in_question = own.least_room < least_tokens
    if not in_question.any():
        return None
    budget = estimated_budget(own, machine)
    return in_question & (budget > 0) & (budget < least_tokens)


def _put(found: Codes, where: Mask, reason: Reason) -> None:
    np.putmask(found, where, CODES[reason])
