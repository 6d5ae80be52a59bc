"""What a provider reports of its models and memory, from one reading."""

from dataclasses import dataclass

from provider.catalog import Model
from provider.granting import Granting
from provider.loading import READ_TRIES, ReadMemory
from provider.memory.admission import max_loadable_weight
from provider.memory.caps import MINIMUM_KV_BYTES
from provider.occupancy import Occupancy
from provider.protocol import MemoryReport, Slot, SlotState
from provider.system_memory import SystemMemory


@dataclass(frozen=True, slots=True)
class Capacity:
    memory: MemoryReport
    slots: list[Slot]


async def picture(occupancy: Occupancy, granting: Granting, read_memory: ReadMemory) -> Capacity:
    """A coherent one: when the grants move while memory is read, it is read again (three times at most), and what is
    said of them is taken after the reading."""
    for _ in range(READ_TRIES):
        epoch = granting.epoch
        memory = await read_memory()
        if epoch == granting.epoch:
            break
    return capacity_of(occupancy, memory)


def capacity_of(occupancy: Occupancy, memory: SystemMemory) -> Capacity:
    reading, reserve = occupancy.reading(memory), occupancy.reserve()
    headroom = reserve + _smallest_kv(occupancy)
    report = MemoryReport(
        physical_bytes=reading.physical_bytes,
        effective_cap_bytes=reading.cap_bytes,
        active_bytes=reading.active_bytes,
        cache_bytes=reading.cache_bytes,
        activation_reserve_bytes=reserve,
        free_for_load_bytes=max_loadable_weight(reading, headroom, occupancy.ledger.outstanding_bytes),
    )
    advertised = occupancy.advertised or []
    places = [one for one in occupancy.models.values() if _has_a_place(one, one.id in advertised)]
    return Capacity(report, [slot_report(one) for one in places])


def _has_a_place(model: Model, advertised: bool) -> bool:
    """What is not loaded has none; but of what is advertised and would be refused, a coordinator is told."""
    return model.slot.status != "unloaded" or (advertised and model.status == "failed")


def _smallest_kv(occupancy: Occupancy) -> int:
    """The weights that could be loaded depend on the KV room they need; of what is served, the least."""
    served = [occupancy.models[id] for id in occupancy.advertised or []]
    return min((one.member.minimum_bytes for one in served), default=MINIMUM_KV_BYTES)


def slot_report(model: Model) -> Slot:
    slot = model.slot
    state, loaded = slot.engine, slot.loaded
    return Slot(
        model=slot.id,
        state=_slot_state(model),
        running=state.running + state.prefill,
        waiting=slot.waiting,
        parked=state.parked + state.moving,
        max_concurrency=slot.limits.max_concurrent,
        tokens_used=state.tokens_used,
        tokens_queued=state.tokens_queued,
        tokens_max=0 if loaded is None else loaded.pool_tokens,
        kv_bytes_per_token=0 if loaded is None else loaded.kv_bytes_per_token,
        decode_tps=slot.rates.decode_tps,
        prefill_tps=slot.rates.prefill_tps,
    )


def _slot_state(model: Model) -> SlotState:
    if model.slot.draining:
        return "unloading"
    match model.status:
        case "loading":
            return "loading"
        case "failed":
            return "failed"
        case "unloaded":
            return "unloading"
        case "ready":
            return "running" if model.slot.open else "idle"
