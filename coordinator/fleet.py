"""What is known of each provider, as a value: a message or the passing of time makes a new one.

The parts that a provider reports (models, slots, memory) are kept as the frozen wire values they came as.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from coordinator.breaker import Breaker
from coordinator.config import Timings
from coordinator.cooldown import Cooldown
from provider.protocol import (
    Hardware,
    Heartbeat,
    LoadModelStatus,
    MemoryReport,
    ModelAd,
    ModelsUpdate,
    PrefetchStatus,
    Register,
    Slot,
    Stats,
)

TELLING_LOAD_BYTES = 2**30
"""Of less, a load is mostly the start of a process, and says nothing of the disk."""
NOTED_MODELS = 16
"""Of so many models a provider's last words on loads and prefetches are kept."""
NOTED_CHARACTERS = 1000
"""Of a reason among them."""
STRAY_SLOTS = 16
"""Of models that it does not advertise: one that it serves no more stays loaded until its chats have ended."""


class Presence(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Connected, and silent for longer than three beats."""
    DISCONNECTED = "disconnected"
    """Not yet lost: it may come back and go on."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Hold:
    """A request of ours at a provider, for as long as no heartbeat counts it."""

    model: str
    prompt_tokens: int
    accepted: bool = False


Progress = LoadModelStatus | PrefetchStatus


@dataclass(frozen=True, slots=True)
class Noted:
    """The last that a provider has said of a load or a prefetch, and when."""

    message: Progress
    at_s: float


NO_HOLDS: Mapping[str, Hold] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ProviderView:
    """One provider as of its last message. `capacity_seq` None: this connection has sent no heartbeat yet."""

    provider_id: str
    name: str
    version: str
    backend: str
    hardware: Hardware
    models: Mapping[str, ModelAd]
    generation: int
    connected: bool
    heard_s: float
    """When it last registered or sent a heartbeat; after a disconnect, the time of that."""
    capacity_seq: int | None = None
    draining: bool = False
    """By its own word, or by an operator's order here."""
    drain_ordered: bool = False
    """By an operator: it stands until it is taken back, whatever the provider says, and outlives connections."""
    thermal: str = "nominal"
    memory: MemoryReport | None = None
    slots: Mapping[str, Slot] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    holds: Mapping[str, Hold] = field(default_factory=lambda: NO_HOLDS)
    """By request: what the last heartbeat does not count."""
    counted: Mapping[str, Hold] = field(default_factory=lambda: NO_HOLDS)
    """By request: what is with the provider and was accepted before its last heartbeat, whose slots count it."""
    full_until_s: Mapping[str, float] = field(default_factory=dict)
    """By model: its waiting room was full, and is not asked again before this time."""
    loads: Mapping[str, Noted] = field(default_factory=dict)
    prefetches: Mapping[str, Noted] = field(default_factory=dict)
    cooldowns: Mapping[str, Cooldown] = field(default_factory=dict)
    """By model, as are `loads`, `prefetches` and `breakers`."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    loading_since_s: Mapping[str, float] = field(default_factory=dict)
    """By model: when a heartbeat first showed it loading."""
    load_bytes_per_s: float | None = None
    """As observed, of large models."""

    def at_it(self, model: str) -> bool:
        """Whether a request of ours for the model is with the provider."""
        return any(hold.model == model for holds in (self.holds, self.counted) for hold in holds.values())


def registered(message: Register, generation: int, now_s: float, former: ProviderView | None = None) -> ProviderView:
    """A fresh view: what the provider was on an earlier connection does not carry over. What has become of its loads
    does, and what counts against it, and an operator's order to drain: it is the same machine. So do the requests that
    it has of ours: its next heartbeat counts them."""
    fresh = _fresh(message, generation, now_s)
    if former is None:
        return fresh
    return replace(
        fresh,
        holds={**former.counted, **former.holds},
        draining=former.drain_ordered,
        drain_ordered=former.drain_ordered,
        loads=former.loads,
        prefetches=former.prefetches,
        cooldowns=former.cooldowns,
        breakers=former.breakers,
        load_bytes_per_s=former.load_bytes_per_s,
    )


def beaten(view: ProviderView, beat: Heartbeat, now_s: float) -> ProviderView:
    """A heartbeat older than the last proves life and says nothing else. It counts what we hold accepted."""
    if view.capacity_seq is not None and beat.capacity_seq < view.capacity_seq:
        return replace(view, heard_s=now_s)
    slots = _slots(view, beat)
    ours = {**view.counted, **view.holds}
    counted = _counted(ours, slots)
    return replace(
        view,
        heard_s=now_s,
        capacity_seq=beat.capacity_seq,
        draining=beat.status == "draining" or view.drain_ordered,
        thermal=beat.thermal,
        memory=beat.memory,
        slots=slots,
        loading_since_s=_loading(view, slots, now_s),
        load_bytes_per_s=_load_rate(view, slots, now_s),
        stats=beat.stats,
        holds={key: hold for key, hold in ours.items() if key not in counted},
        counted=counted,
    )


def models_replaced(view: ProviderView, message: ModelsUpdate) -> ProviderView:
    return replace(view, models={model.id: model for model in message.models})


def disconnected(view: ProviderView, now_s: float) -> ProviderView:
    """It keeps what it holds of ours: it may come back and go on."""
    return replace(view, connected=False, heard_s=now_s)


def lost(view: ProviderView) -> ProviderView:
    """Disconnected for its silence, which has lasted long enough."""
    return replace(view, connected=False)


def held(view: ProviderView, request_id: str, hold: Hold) -> ProviderView:
    return replace(view, holds={**view.holds, request_id: hold})


def accepted(view: ProviderView, request_id: str) -> ProviderView:
    """Whoever accepts a request for a model is no longer cooling down from its refusals."""
    hold = view.holds.get(request_id)
    if hold is None:
        return view
    cooldowns = {model: one for model, one in view.cooldowns.items() if model != hold.model}
    return replace(view, holds={**view.holds, request_id: replace(hold, accepted=True)}, cooldowns=cooldowns)


def released(view: ProviderView, request_id: str) -> ProviderView:
    """It has ended. A heartbeat that has counted it is out of date by that much, and is amended: the next may be
    seconds away, and until then its place would stand empty."""
    counted = view.counted.get(request_id)
    if counted is not None:
        return replace(view, counted=_without(view.counted, request_id), slots=_amended(view.slots, counted))
    if request_id not in view.holds:
        return view
    return replace(view, holds=_without(view.holds, request_id))


def full(view: ProviderView, model: str, until_s: float) -> ProviderView:
    return replace(view, full_until_s={**view.full_until_s, model: until_s})


def cooled(view: ProviderView, model: str, cooldown: Cooldown) -> ProviderView:
    return replace(view, cooldowns={**view.cooldowns, model: cooldown})


def failed(view: ProviderView, model: str, breaker: Breaker) -> ProviderView:
    return replace(view, breakers={**view.breakers, model: breaker})


def succeeded(view: ProviderView, model: str) -> ProviderView:
    if model not in view.breakers:
        return view
    return replace(view, breakers={key: one for key, one in view.breakers.items() if key != model})


def drain_ordered(view: ProviderView, drain: bool) -> ProviderView:
    """An operator's order, or its end, after which the provider's own word counts: the last, where none was ordered."""
    return replace(view, drain_ordered=drain, draining=drain or (view.draining and not view.drain_ordered))


def told(view: ProviderView, message: Progress, now_s: float) -> ProviderView:
    match message:
        case LoadModelStatus():
            return replace(view, loads=_noted(view.loads, message, now_s))
        case PrefetchStatus():
            return replace(view, prefetches=_noted(view.prefetches, message, now_s))


def places(max_concurrency: int) -> int:
    """Requests that a provider is sent at a time: those it runs, and a few in line behind them, so that none of its
    slots stands empty while word of it travels. Everyone else waits here, where any provider may take them."""
    return max_concurrency + max_concurrency // 4


def presence(view: ProviderView, now_s: float, timings: Timings) -> Presence:
    silence_s = now_s - view.heard_s
    if silence_s >= timings.lost_after_s:
        return Presence.LOST
    if not view.connected:
        return Presence.DISCONNECTED
    return Presence.ALIVE if silence_s < timings.suspect_after_s else Presence.SUSPECT


def forgotten(view: ProviderView, now_s: float, timings: Timings) -> bool:
    """A lost provider stays listed for a while."""
    return now_s - view.heard_s >= timings.lost_after_s + timings.listed_after_loss_s


def _fresh(message: Register, generation: int, now_s: float) -> ProviderView:
    return ProviderView(
        provider_id=message.provider_id,
        name=message.name,
        version=message.version,
        backend=message.backend,
        hardware=message.hardware,
        models={model.id: model for model in message.models},
        generation=generation,
        connected=True,
        heard_s=now_s,
    )


def _counted(ours: Mapping[str, Hold], slots: Mapping[str, Slot]) -> dict[str, Hold]:
    """Of what is with a provider, what was accepted, and no more than its slots have: a request that waits for its
    model to be loaded may be in none."""
    left = {model: slot.running + slot.waiting + slot.parked for model, slot in slots.items()}
    counted = {}
    for key, hold in ours.items():
        if hold.accepted and left.get(hold.model, 0):
            left[hold.model] -= 1
            counted[key] = hold
    return counted


def _without(holds: Mapping[str, Hold], request_id: str) -> dict[str, Hold]:
    return {key: hold for key, hold in holds.items() if key != request_id}


def _amended(slots: Mapping[str, Slot], gone: Hold) -> Mapping[str, Slot]:
    """Without a request that the slot counts. Whoever stood in line at the provider takes its place there."""
    slot = slots.get(gone.model)
    if slot is None:
        return slots
    line = {"waiting": slot.waiting - 1} if slot.waiting else {"running": max(0, slot.running - 1)}
    used = max(0, slot.tokens_used - gone.prompt_tokens)
    return {**slots, gone.model: slot.model_copy(update={**line, "tokens_used": used})}


def _slots(view: ProviderView, beat: Heartbeat) -> dict[str, Slot]:
    """Those of what it advertises, and a few others: what is kept of a provider grows with its models alone."""
    slots = {slot.model: slot for slot in beat.slots}
    if len(slots) > STRAY_SLOTS:
        for model in [model for model in slots if model not in view.models][STRAY_SLOTS:]:
            del slots[model]
    return slots


def _loading(view: ProviderView, slots: Mapping[str, Slot], now_s: float) -> Mapping[str, float]:
    loading = [model for model, slot in slots.items() if slot.state == "loading"]
    return {model: view.loading_since_s.get(model, now_s) for model in loading}


def _load_rate(view: ProviderView, slots: Mapping[str, Slot], now_s: float) -> float | None:
    """Halfway from the last to that of a load which this heartbeat shows done."""
    rate = view.load_bytes_per_s
    for model, since_s in view.loading_since_s.items():
        slot, ad = slots.get(model), view.models.get(model)
        done = slot is not None and slot.state in ("idle", "running")
        if done and ad is not None and ad.size_bytes >= TELLING_LOAD_BYTES and now_s > since_s:
            seen = ad.size_bytes / (now_s - since_s)
            rate = seen if rate is None else (rate + seen) / 2
    return rate


def _noted(notes: Mapping[str, Noted], message: Progress, now_s: float) -> dict[str, Noted]:
    """The oldest is given up for a new one."""
    if message.reason is not None and len(message.reason) > NOTED_CHARACTERS:
        message = message.model_copy(update={"reason": message.reason[:NOTED_CHARACTERS]})
    others = [(model, note) for model, note in notes.items() if model != message.model_id]
    return {**dict(others[-NOTED_MODELS + 1 :]), message.model_id: Noted(message, now_s)}
