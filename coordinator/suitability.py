"""Whether a provider may be asked to load a model that shall be kept warm, and what speaks for it: pure.

Stricter than what a request may cause: a load that nobody waits for never takes a model's place that is wanted there,
nor that of one that somebody uses.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from coordinator import mirror
from coordinator.columns import LOAD_BYTES_PER_S
from coordinator.config import Timings
from coordinator.fleet import Presence, ProviderView, presence
from coordinator.mirror import ColdLoad
from coordinator.store.records import MemoryTables
from provider.memory.requirement import padded_weights
from provider.protocol import ModelAd, Slot

RESIDENT_AT_ONCE = 3
"""Models that a provider keeps loaded (docs/memory.md): one more takes an idle one's place."""
HEAT = ("nominal", "fair", "serious", "critical")


class Blocked(StrEnum):
    """Why a provider is not asked to load a model."""

    HELD = "held"
    """It has it, or is loading it."""
    ORDERED = "ordered"
    AWAY = "away"
    DRAINING = "draining"
    SILENT = "silent"
    """It has not yet said what it holds."""
    NOT_ADVERTISED = "not_advertised"
    """It does not serve the model, or has still to fetch it."""
    SLOT_FAILED = "slot_failed"
    BUSY_LOADING = "busy_loading"
    BACKING_OFF = "backing_off"
    """It has failed to load or to keep it, and is asked again later."""
    MEMORY_CAP = "memory_cap"
    """It would not fit, whatever left."""
    NO_ROOM = "no_room"
    """It would fit only in place of a model that is used, or that shall be kept warm there."""


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Compared in this order; the id makes it total."""

    evicts: bool
    unknown: bool
    """The provider does not say what memory it has."""
    heat: int
    at_work: int
    """Requests of any model."""
    load_s: float
    provider_id: str


def judge(
    view: ProviderView, model: str, kept: Collection[str], now_s: float, timings: Timings, tables: MemoryTables
) -> Cost | Blocked:
    """`kept` are the models that shall be kept warm there. What has become of earlier orders is not its matter."""
    if presence(view, now_s, timings) is not Presence.ALIVE:
        return Blocked.AWAY
    if view.draining:
        return Blocked.DRAINING
    if view.capacity_seq is None:
        return Blocked.SILENT
    slot, ad = view.slots.get(model), view.models.get(model)
    if slot is not None:
        return _of_slot(slot)
    if ad is None:
        return Blocked.NOT_ADVERTISED
    if any(one.state in ("loading", "unloading") for one in view.slots.values()):
        return Blocked.BUSY_LOADING
    return _room(view, ad, kept, tables)


def _of_slot(slot: Slot) -> Blocked:
    match slot.state:
        case "idle" | "running" | "loading":
            return Blocked.HELD
        case "unloading":
            return Blocked.BUSY_LOADING
        case "failed":
            return Blocked.SLOT_FAILED


def _room(view: ProviderView, ad: ModelAd, kept: Collection[str], tables: MemoryTables) -> Cost | Blocked:
    admitted = mirror.cold_load(view, ad)
    if admitted is ColdLoad.REFUSED or not mirror.plan(view, ad, tables).fits:
        return Blocked.MEMORY_CAP
    unknown = admitted is ColdLoad.UNKNOWN
    evicts = bool(_holding(view)) if unknown else _evicts(view, ad)
    if evicts and not _may_evict(view, kept):
        return Blocked.NO_ROOM
    return Cost(
        evicts=evicts,
        unknown=unknown,
        heat=HEAT.index(view.thermal),
        at_work=sum(_at_work(slot) for slot in view.slots.values()) + len(view.holds),
        load_s=ad.size_bytes / (view.load_bytes_per_s or LOAD_BYTES_PER_S),
        provider_id=view.provider_id,
    )


def _evicts(view: ProviderView, ad: ModelAd) -> bool:
    """What a provider says is free for a load counts all that it holds itself as evictable: here it does not."""
    if len(_holding(view)) >= RESIDENT_AT_ONCE:
        return True
    memory = view.memory
    if memory is None or not isinstance(memory.free_for_load_bytes, int) or not isinstance(memory.active_bytes, int):
        return bool(_holding(view))
    return padded_weights(ad.size_bytes) > memory.free_for_load_bytes - memory.active_bytes


def _holding(view: ProviderView) -> list[Slot]:
    """The slots that a model has memory in: one that has failed holds nothing."""
    return [slot for slot in view.slots.values() if slot.state != "failed"]


def _may_evict(view: ProviderView, kept: Collection[str]) -> bool:
    """The provider chooses what leaves, so all that it holds must be dispensable."""
    idle = not view.holds and not any(_at_work(slot) for slot in view.slots.values())
    return idle and not any(model in kept for model in view.slots)


def _at_work(slot: Slot) -> int:
    return slot.running + slot.waiting + slot.parked
