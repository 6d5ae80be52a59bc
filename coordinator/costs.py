"""What it costs a provider to take a request: predicted milliseconds until it is answered, by named terms.

Backend-neutral: a Mac, a GPU and a CPU differ in what they report and in nothing else. Arithmetic over whole columns;
no term falls as a provider gets more to do.
"""

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from coordinator.columns import Floats, Machine, Place
from coordinator.gates import Request

Cell = TypeVar("Cell")

PREFILL_TPS = 500.0
DECODE_TPS = 30.0
"""Tokens per second where nobody has measured the model yet: of a laptop and a small model."""
UNKNOWN_FIT_MS = 30_000.0
"""Whether the model fits only the provider can tell: its refusal costs another try."""
ROOMY = 0.75
"""Up to this share of its KV pool a provider parks nobody."""
PARKED_ANSWERS = 3.0
"""What each parked chat counts for: its answer, its copies out and in, and that the next may be parked too."""
KEPT_SHARE = 0.5
"""Of a prompt, that whoever served the conversation last may have kept."""


class Terms(NamedTuple, Generic[Cell]):
    """Milliseconds. The cost is their sum."""

    residency: Cell
    """Until the model is loaded."""
    prefill_backlog: Cell
    """The prompts before this one."""
    decode_backlog: Cell
    """The answers beside and before this one: they come out of the same rate."""
    prefill: Cell
    decode: Cell
    """This request's own prompt and answer, alone."""
    memory_pressure: Cell
    """Up to one answer's time as the KV pool fills, and more beyond: it parks, or waits for room."""
    parking: Cell
    """Parked chats come first when there is room."""
    thermal: Cell
    affinity: Cell
    """Below zero: what the provider may have kept of the conversation."""


def terms(
    request: Request, own: Place[Floats], machine: Machine[Floats], served_last: int | None, now_s: float
) -> Terms[Floats]:
    """`served_last` is a row. Those that the gates keep out get numbers too, of no meaning."""
    prefill_ms, decode_ms = rates(own.prefill_ms, PREFILL_TPS), rates(own.decode_ms, DECODE_TPS)
    prefill, decode = request.prompt_tokens * prefill_ms, request.answer_tokens * decode_ms
    prefill_backlog, decode_backlog = own.queued_tokens * prefill_ms, own.at_work * decode
    work = prefill + decode + prefill_backlog + decode_backlog
    return Terms(
        residency=_residency(own, machine, now_s),
        prefill_backlog=prefill_backlog,
        decode_backlog=decode_backlog,
        prefill=prefill,
        decode=decode,
        memory_pressure=decode * _pressure(request, own),
        parking=PARKED_ANSWERS * own.parked * decode,
        thermal=work * (machine.slowdown - 1.0),
        affinity=_affinity(prefill, served_last),
    )


def total(terms: Terms[Floats]) -> Floats:
    cost: Floats = np.zeros_like(terms.prefill)
    for term in terms:
        np.add(cost, term, out=cost)
    return cost


def summed(terms: Terms[float]) -> float:
    return sum(terms)


def _residency(own: Place[Floats], machine: Machine[Floats], now_s: float) -> Floats:
    """Of the whole load, less what has passed of it where it is under way."""
    if not own.start_ms.any():
        return np.zeros_like(own.start_ms)
    whole = own.start_ms + own.load_bytes * machine.load_ms_per_byte
    passed = np.maximum(now_s - own.loading_since_s, 0.0)
    left = np.maximum(whole - 1000.0 * passed, own.least_ms)
    cold = own.load_needs_bytes > -np.inf
    unsure = cold & (np.isnan(machine.free_bytes) | (own.load_needs_bytes == 0))
    return left + UNKNOWN_FIT_MS * unsure


def _pressure(request: Request, own: Place[Floats]) -> Floats:
    """0 up to the roomy share of the pool, 1 where this prompt would fill it, and on in the same line."""
    wanted = own.tokens + np.minimum(own.tokens_max, request.prompt_tokens)
    return np.maximum(wanted / own.tokens_max - ROOMY, 0.0) / (1.0 - ROOMY)


def _affinity(prefill: Floats, served_last: int | None) -> Floats:
    bonus = np.zeros_like(prefill)
    if served_last is not None:
        bonus[served_last] = -KEPT_SHARE * prefill[served_last]
    return bonus


def rates(observed_ms: Floats, default_tps: float) -> Floats:
    """Whoever has not been measured counts as fast as the fastest that has: so it is tried, and measured."""
    unknown = np.isnan(observed_ms)
    if not unknown.any():
        return observed_ms
    fastest = np.fmin.reduce(observed_ms)
    return np.where(unknown, 1000.0 / default_tps if np.isnan(fastest) else fastest, observed_ms)
