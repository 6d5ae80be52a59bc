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
LOAD_BYTES_PER_S = 1e9
"""Of a provider that has not been seen loading: an ordinary SSD."""
SLOWDOWN = {"nominal": 1.0, "fair": 1.1, "serious": 1.5, "critical": 3.0}
"""Of a machine that throttles; its rates are smoothed, and follow late."""
SLOWEST_TPS, FASTEST_TPS = 1e-2, 1e8
"""A rate beyond these is no rate."""


class Machine(NamedTuple, Generic[Cell]):
    """Of a provider, whatever the model. Times are the coordinator's monotonic seconds."""

    heard_s: Cell
    connected: Cell
    draining: Cell
    free_bytes: Cell
    """For a load; NaN where the provider has not said, below zero where it has said nonsense."""
    cap_bytes: Cell
    """What models and their caches may take, estimated on the large side."""
    reserve_bytes: Cell
    slowdown: Cell
    """How many times longer work takes for the heat."""
    load_ms_per_byte: Cell


class Place(NamedTuple, Generic[Cell]):
    """Of one model at one provider. Unknown bounds are infinite, unknown rates NaN."""

    context: Cell
    exact: Cell
    vision: Cell
    room: Cell
    """Positions that a prompt may have, as the slot tells."""
    least_room: Cell
    """Of what is not loaded: more positions than these ask for the estimate below; else infinite."""
    weights_bytes: Cell
    floor_bytes: Cell
    kv_bytes: Cell
    state_gate: Cell
    """The code of the reason for which its state forbids everything, or 0."""
    load_needs_bytes: Cell
    """To be loaded first; minus infinity where it is, or is about to be."""
    cooling_until_s: Cell
    broken_until_s: Cell
    full_until_s: Cell
    at_work: Cell
    """Requests running, waiting or sent."""
    places: Cell
    """Those in line behind the slots included."""
    parked: Cell
    tokens: Cell
    """Positions used, waiting for room, or sent."""
    tokens_max: Cell
    queued_tokens: Cell
    prefill_ms: Cell
    decode_ms: Cell
    """For each token, as observed."""
    start_ms: Cell
    """Until it could serve, but for the weights' own time; 0 where it is loaded."""
    load_bytes: Cell
    loading_since_s: Cell
    """Infinite where it is not being loaded."""
    least_ms: Cell


@dataclass(slots=True)
class Estimator:
    """The mirror's answers for the release of a provider, which are the same for all of that release."""

    tables: MemoryTables
    _alone: dict[tuple[str, str, bool], float] = field(default_factory=dict)

    def floor_alone(self, view: ProviderView, ad: ModelAd) -> float:
        key = (view.version, ad.id, ad.vision)
        known = self._alone.get(key)
        if known is None:
            known = self._alone[key] = float(mirror.reserve_alone(view, ad, self.tables))
        return known


def machine(view: ProviderView, tables: MemoryTables) -> Machine[float]:
    return Machine(
        heard_s=view.heard_s,
        connected=float(view.connected),
        draining=float(view.draining),
        free_bytes=_free(None if view.memory is None else view.memory.free_for_load_bytes),
        cap_bytes=float(mirror.cap_estimate(view)),
        reserve_bytes=float(mirror.reserve(view, tables).activation_reserve_bytes),
        slowdown=SLOWDOWN.get(view.thermal, 1.0),
        load_ms_per_byte=1000.0 / (view.load_bytes_per_s or LOAD_BYTES_PER_S),
    )


def place(view: ProviderView, ad: ModelAd, estimator: Estimator) -> Place[float]:
    slot = view.slots.get(ad.id)
    loaded = mirror.loaded(slot)
    held = [hold for hold in view.holds.values() if hold.model == ad.id]
    held_tokens = sum(hold.prompt_tokens for hold in held)
    state = "none" if slot is None else slot.state
    estimated = not loaded and state != "failed" and not (slot and slot.tokens_max) and mirror.estimable(view, ad)
    return Place(
        context=ad.context_length or UNBOUNDED,
        exact=float(ad.exact == "on"),
        vision=float(ad.vision),
        room=_room(slot, loaded, ad),
        least_room=float(mirror.least_room(ad)) if estimated else UNBOUNDED,
        weights_bytes=float(mirror.resident_weights(view.version, ad, estimator.tables)) if estimated else 0.0,
        floor_bytes=estimator.floor_alone(view, ad) if estimated else 0.0,
        kv_bytes=ad.kv_bytes_per_token or 1,
        state_gate=_state_gate(slot),
        load_needs_bytes=_load_needs(ad) if slot is None or state == "unloading" else NEVER,
        cooling_until_s=_cooling_until(view, ad.id, held),
        broken_until_s=_broken_until(view, ad.id),
        full_until_s=view.full_until_s.get(ad.id, NEVER),
        at_work=len(held) + (0 if slot is None else slot.running + slot.waiting),
        places=_places(slot),
        parked=0 if slot is None else slot.parked,
        tokens=held_tokens + (0 if slot is None else slot.tokens_used + slot.tokens_queued),
        tokens_max=(slot.tokens_max if slot else 0) or UNBOUNDED,
        queued_tokens=held_tokens + (0 if slot is None else slot.tokens_queued),
        prefill_ms=UNKNOWN if slot is None else _ms_per_token(slot.prefill_tps),
        decode_ms=UNKNOWN if slot is None else _ms_per_token(slot.decode_tps),
        start_ms=0.0 if loaded else COLD_START_MS + (UNLOAD_MS if state == "unloading" else 0.0),
        load_bytes=0.0 if loaded else float(ad.size_bytes),
        loading_since_s=view.loading_since_s.get(ad.id, UNBOUNDED) if state == "loading" else UNBOUNDED,
        least_ms=LEFT_OF_LOAD_MS if state == "loading" else 0.0,
    )


def _places(slot: Slot | None) -> float:
    if slot is None:
        return fleet.places(mirror.CONCURRENT)
    return fleet.places(slot.max_concurrency) if slot.max_concurrency else UNBOUNDED


def _free(told: Measured) -> float:
    if told is None:
        return UNKNOWN
    return float(told) if isinstance(told, int) else INVALID


def _room(slot: Slot | None, loaded: bool, ad: ModelAd) -> float:
    if slot is None or not slot.tokens_max:
        return UNBOUNDED
    return float(slot.tokens_max if loaded else max(slot.tokens_max, mirror.least_room(ad)))


def _state_gate(slot: Slot | None) -> float:
    if slot is not None and slot.state == "failed":
        return CODES[Reason.SLOT_FAILED]
    return CODES[Reason.NO_KV_BUDGET] if mirror.known_zero(slot) else 0


def _load_needs(ad: ModelAd) -> float:
    """A size that is not known refuses nobody."""
    return float(padded_weights(ad.size_bytes)) if ad.size_bytes > 0 else 0.0


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
