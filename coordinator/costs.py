"""What it costs a provider to take a request: predicted milliseconds until it is answered, by named terms.

Backend-neutral: a Mac, a GPU and a CPU differ in what they report and in nothing else. No term falls as a provider gets
more to do. `cost` is the sum of the terms over whole columns, `terms` tells them apart for one row.
"""

import math
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from coordinator.columns import Floats, Place
from coordinator.gates import Request

Cell = TypeVar("Cell")

PREFILL_TPS = 500.0
DECODE_TPS = 30.0
"""Tokens per second where nobody has measured the model yet: of a laptop and a small model."""
ROOMY = 0.75
"""Up to this share of its KV pool a provider parks nobody."""
PARKED_ANSWERS = 3.0
"""What each parked chat counts for: its answer, its copies out and in, and that the next may be parked too."""
KEPT_SHARE = 0.25
"""Of a prompt, that whoever served the conversation last is taken to have kept: what it has kept it does not say."""


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


class Rates(NamedTuple, Generic[Cell]):
    """Milliseconds per token."""

    prefill: Cell
    decode: Cell


def rates(own: Place[Floats]) -> Rates[Floats]:
    return Rates(_known(own.prefill_ms, PREFILL_TPS), _known(own.decode_ms, DECODE_TPS))


def cost(
    request: Request, own: Place[Floats], rates: Rates[Floats], slowdown: Floats, served_last: int | None, now_s: float
) -> Floats:
    """`served_last` is a row. Those that the gates keep out get numbers too, of no meaning."""
    prompt = request.prompt_tokens
    decode = request.answer_tokens * rates.decode
    work = (own.queued_tokens + prompt) * rates.prefill
    work += (own.at_work + 1.0) * decode
    work *= slowdown
    pressure = (np.minimum(own.tokens_max, prompt) + own.tokens) * own.per_token
    pressure -= ROOMY
    pressure *= 1.0 / (1.0 - ROOMY)
    np.maximum(pressure, 0.0, out=pressure)
    pressure += PARKED_ANSWERS * own.parked
    pressure *= decode
    work += pressure
    work += np.maximum(own.residency_ms, own.ready_at_ms - 1000.0 * now_s)
    if served_last is not None:
        work[served_last] -= KEPT_SHARE * prompt * rates.prefill[served_last]
    return work


def terms(
    request: Request, own: Place[float], rates: Rates[float], slowdown: float, served_last: bool, now_s: float
) -> Terms[float]:
    """Of one row."""
    prefill, decode = request.prompt_tokens * rates.prefill, request.answer_tokens * rates.decode
    prefill_backlog, decode_backlog = own.queued_tokens * rates.prefill, own.at_work * decode
    filled = (own.tokens + min(own.tokens_max, request.prompt_tokens)) * own.per_token
    return Terms(
        residency=max(own.residency_ms, own.ready_at_ms - 1000.0 * now_s),
        prefill_backlog=prefill_backlog,
        decode_backlog=decode_backlog,
        prefill=prefill,
        decode=decode,
        memory_pressure=decode * max(0.0, filled - ROOMY) / (1.0 - ROOMY),
        parking=PARKED_ANSWERS * own.parked * decode,
        thermal=(slowdown - 1.0) * (prefill + decode + prefill_backlog + decode_backlog),
        affinity=-KEPT_SHARE * prefill if served_last else 0.0,
    )


def _known(observed_ms: Floats, default_tps: float) -> Floats:
    """Whoever has not been measured counts as fast as the fastest that has: so it is tried, and measured."""
    fastest = float(np.fmin.reduce(observed_ms))
    if math.isnan(fastest):
        fastest = 1000.0 / default_tps
    return np.where(np.isnan(observed_ms), fastest, observed_ms)
