"""What routing reads of the fleet, as numbers: a row for each provider, and one for each model of each provider.

A row is made of a view once, when that has changed, by the scalar arithmetic of the mirror; a decision reads whole
columns (gates.py, costs.py). The same named tuple is a row (of numbers) and the columns (of arrays).
"""

import math
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from coordinator import cooldown, fleet, mirror
from coordinator.breaker import FAILURES
from coordinator.fleet import Hold, ProviderView
from coordinator.reasons import CODES, Reason
from coordinator.store.records import MemoryTables
from provider.memory.requirement import padded_weights
from provider.protocol import Measured, ModelAd, Slot

Cell = TypeVar("Cell")
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
UNKNOWN = math.nan
NEVER = -math.inf
"""A time that has passed, and a bound that nothing is below."""
UNBOUNDED = math.inf
INVALID = -1.0
"""Free bytes that are no number: less than any model needs."""
COLD_START_MS = 10_000.0
"""A process, its libraries, the checks of a load; and what loading takes from those who share the machine."""
LEFT_OF_LOAD_MS = 500.0
"""Of a load that should be over by now."""
UNLOAD_MS = 10_000.0
"""The chats of a model that leaves end first."""
UNKNOWN_FIT_MS = 30_000.0
"""Whether the model fits only the provider can tell: its refusal costs another try."""
LOAD_BYTES_PER_S = 1e9
"""Of a provider that has not been seen loading: an ordinary SSD."""
SLOWDOWN = {"nominal": 1.0, "fair": 1.1, "serious": 1.5, "critical": 3.0}
"""Of a machine that throttles; its rates are smoothed, and follow late."""
MOST_KNOWN = 10_000
"""Models of releases whose reserve is remembered."""
SLOWEST_TPS, FASTEST_TPS = 1e-2, 1e8
"""A rate beyond these is no rate."""


class Machine(NamedTuple, Generic[Cell]):
    """Of a provider, whatever the model. Times are the coordinator's monotonic seconds."""

    open_s: Cell
    """When it was heard last; minus infinity where it is away or draining."""
    free_bytes: Cell
    """For a load; NaN where the provider has not said, below zero where it has said nonsense."""
    slowdown: Cell
    """How many times longer work takes for the heat."""
    heard_s: Cell
    connected: Cell
    draining: Cell
    cap_bytes: Cell
    """What models and their caches may take, estimated on the large side."""
    reserve_bytes: Cell


class Place(NamedTuple, Generic[Cell]):
    """Of one model at one provider. Unknown bounds are infinite, unknown rates NaN."""

    shut_until_s: Cell
    """Until when one of the gates of state, failure and fullness is closed, whatever is asked."""
    longest: Cell
    """The longest prompt that its context and its slot allow; `least_room` is held against an estimate besides."""
    full_for: Cell
    """Its KV pool is taken: for prompts that would ever fit, up to so many tokens. Else minus infinity."""
    load_needs_bytes: Cell
    """To be loaded first; minus infinity where it is, or is about to be."""
    least_room: Cell
    """Of what is not loaded: a longer prompt asks for the estimate below; else infinite."""
    at_work: Cell
    """Requests running, waiting or sent."""
    parked: Cell
    tokens: Cell
    """Positions used, waiting for room, or sent."""
    tokens_max: Cell
    per_token: Cell
    """The share of its KV pool that a position is; 0 where that is not known."""
    queued_tokens: Cell
    prefill_ms: Cell
    decode_ms: Cell
    """For each token, as observed."""
    residency_ms: Cell
    """Until it could serve: 0 where it is loaded; of a load under way, what is always left."""
    ready_at_ms: Cell
    """Of a load under way: when it should be over. Else minus infinity."""
    exact: Cell
    vision: Cell
    context: Cell
    room: Cell
    """Positions that a prompt may have, as the slot tells."""
    weights_bytes: Cell
    floor_bytes: Cell
    kv_bytes: Cell
    state_gate: Cell
    """The code of the reason for which its state forbids everything, or 0."""
    cooling_until_s: Cell
    broken_until_s: Cell
    full_until_s: Cell
    places: Cell
    """Those in line behind the slots included."""


@dataclass(slots=True)
class Estimator:
    """The mirror's answers for the release of a provider, which are the same for all of that release."""

    tables: MemoryTables
    _alone: dict[tuple[str, str, bool], float] = field(default_factory=dict)

    def floor_alone(self, view: ProviderView, ad: ModelAd) -> float:
        key = (view.version, ad.id, ad.vision)
        known = self._alone.get(key)
        if known is None:
            if len(self._alone) >= MOST_KNOWN:
                self._alone.clear()
            known = self._alone[key] = float(mirror.reserve_alone(view, ad, self.tables))
        return known


def machine(view: ProviderView, tables: MemoryTables) -> Machine[float]:
    return Machine(
        open_s=view.heard_s if view.connected and not view.draining else NEVER,
        free_bytes=free_bytes(view),
        slowdown=SLOWDOWN.get(view.thermal, 1.0),
        heard_s=view.heard_s,
        connected=float(view.connected),
        draining=float(view.draining),
        cap_bytes=float(mirror.cap_estimate(view)),
        reserve_bytes=float(mirror.reserve(view, tables).activation_reserve_bytes),
    )


def place(view: ProviderView, ad: ModelAd, estimator: Estimator) -> Place[float]:
    slot = view.slots.get(ad.id)
    held = [hold for hold in view.holds.values() if hold.model == ad.id]
    held_tokens = sum(hold.prompt_tokens for hold in held)
    at_work, tokens, queued = len(held), held_tokens, held_tokens
    if slot is not None:
        at_work += slot.running + slot.waiting
        tokens += slot.tokens_used + slot.tokens_queued
        queued += slot.tokens_queued
    tokens_max = (slot.tokens_max if slot else 0) or UNBOUNDED
    context, room = ad.context_length or UNBOUNDED, _room(slot, ad)
    estimated = _estimated(view, ad, slot)
    gates = (_state_gate(slot), _cooling_until(view, ad.id, held), _broken_until(view, ad.id))
    full_until_s, places = view.full_until_s.get(ad.id, NEVER), _places(slot)
    return Place(
        shut_until_s=UNBOUNDED if gates[0] or at_work >= places else max(*gates[1:], full_until_s),
        longest=min(context - 1, room),
        full_for=tokens_max if tokens >= tokens_max else NEVER,
        load_needs_bytes=_load_needs(ad, slot),
        least_room=mirror.least_room(ad) if estimated else UNBOUNDED,
        at_work=at_work,
        parked=0 if slot is None else slot.parked,
        tokens=tokens,
        tokens_max=tokens_max,
        per_token=1.0 / tokens_max,
        queued_tokens=queued,
        prefill_ms=UNKNOWN if slot is None else _ms_per_token(slot.prefill_tps),
        decode_ms=UNKNOWN if slot is None else _ms_per_token(slot.decode_tps),
        residency_ms=_residency_ms(view, ad, slot),
        ready_at_ms=_ready_at_ms(view, ad, slot),
        exact=ad.exact == "on",
        vision=ad.vision,
        context=context,
        room=room,
        weights_bytes=mirror.resident_weights(view.version, ad, estimator.tables) if estimated else 0.0,
        floor_bytes=estimator.floor_alone(view, ad) if estimated else 0.0,
        kv_bytes=ad.kv_bytes_per_token or 1,
        state_gate=gates[0],
        cooling_until_s=gates[1],
        broken_until_s=gates[2],
        full_until_s=full_until_s,
        places=places,
    )


def free_bytes(view: ProviderView) -> float:
    told: Measured = None if view.memory is None else view.memory.free_for_load_bytes
    if told is None:
        return UNKNOWN
    return float(told) if isinstance(told, int) else INVALID


def _estimated(view: ProviderView, ad: ModelAd, slot: Slot | None) -> bool:
    """Whether its room is that of a load which is still to come."""
    if slot is not None and (slot.tokens_max or slot.state in ("idle", "running", "failed")):
        return False
    return mirror.estimable(view, ad)


def _room(slot: Slot | None, ad: ModelAd) -> float:
    if slot is None or not slot.tokens_max:
        return UNBOUNDED
    return slot.tokens_max if mirror.loaded(slot) else max(slot.tokens_max, mirror.least_room(ad))


def _state_gate(slot: Slot | None) -> int:
    if slot is not None and slot.state == "failed":
        return CODES[Reason.SLOT_FAILED]
    return CODES[Reason.NO_KV_BUDGET] if mirror.known_zero(slot) else 0


def _places(slot: Slot | None) -> float:
    if slot is None:
        return fleet.places(mirror.CONCURRENT)
    return fleet.places(slot.max_concurrency) if slot.max_concurrency else UNBOUNDED


def _cold(slot: Slot | None) -> bool:
    return slot is None or slot.state == "unloading"


def _load_needs(ad: ModelAd, slot: Slot | None) -> float:
    """A size that is not known refuses nobody."""
    if not _cold(slot):
        return NEVER
    return padded_weights(ad.size_bytes) if ad.size_bytes > 0 else 0.0


def _whole_load_ms(view: ProviderView, ad: ModelAd) -> float:
    return COLD_START_MS + 1000.0 * ad.size_bytes / (view.load_bytes_per_s or LOAD_BYTES_PER_S)


def _residency_ms(view: ProviderView, ad: ModelAd, slot: Slot | None) -> float:
    if mirror.loaded(slot):
        return 0.0
    if slot is not None and slot.state == "loading" and ad.id in view.loading_since_s:
        return LEFT_OF_LOAD_MS
    unsure = _cold(slot) and (math.isnan(free_bytes(view)) or (free_bytes(view) >= 0 and ad.size_bytes <= 0))
    first = UNLOAD_MS if slot is not None and slot.state == "unloading" else 0.0
    return _whole_load_ms(view, ad) + first + (UNKNOWN_FIT_MS if unsure else 0.0)


def _ready_at_ms(view: ProviderView, ad: ModelAd, slot: Slot | None) -> float:
    since_s = view.loading_since_s.get(ad.id)
    if slot is None or slot.state != "loading" or since_s is None:
        return NEVER
    return 1000.0 * since_s + _whole_load_ms(view, ad)


def _cooling_until(view: ProviderView, model: str, held: list[Hold]) -> float:
    known = view.cooldowns.get(model)
    if known is None:
        return NEVER
    return UNBOUNDED if held and known.refusals >= cooldown.REFUSALS else known.until_s


def _broken_until(view: ProviderView, model: str) -> float:
    known = view.breakers.get(model)
    if known is None or known.failures < FAILURES:
        return NEVER
    return UNBOUNDED if view.at_it(model) else known.until_s


def _ms_per_token(told_tps: float | None) -> float:
    if told_tps is None or not SLOWEST_TPS <= told_tps <= FASTEST_TPS:
        return UNKNOWN
    return 1000.0 / told_tps
