"""Providers as the coordinator sees them, for tests that need no socket."""

from dataclasses import replace
from typing import Any

from coordinator import fleet
from coordinator.fleet import ProviderView
from coordinator.store.records import MemoryTables, Residency
from coordinator.views import Views
from provider.memory.floors import SHIPPED_FLOORS, SHIPPED_RESIDENCY_BYTES
from provider.protocol import Hardware, Heartbeat, MemoryReport, ModelAd, MtpStatus, Register, Slot

GIB = 2**30
MODEL = "demo"
TABLES = MemoryTables(
    SHIPPED_FLOORS, {id: Residency(size, "measured", "0.8.16") for id, size in SHIPPED_RESIDENCY_BYTES.items()}
)


def advert(model: str = MODEL, **values: Any) -> ModelAd:
    told = {
        "id": model,
        "model_type": "qwen3_5",
        "size_bytes": GIB,
        "context_length": 4096,
        "kv_bytes_per_token": 1024,
        "state_bytes": 0,
        "mtp": MtpStatus(active=False),
    }
    return ModelAd.model_validate({**told, **values})


def register(provider_id: str = "p1", models: tuple[str, ...] = (MODEL,)) -> Register:
    return Register(
        protocol=1,
        provider_id=provider_id,
        name=provider_id,
        version="0.9.0",
        backend="sim",
        hardware=Hardware(chip="test", memory_bytes=8 * GIB, memory_kind="host", cores=2),
        models=[advert(model) for model in models],
    )


def slot(model: str = MODEL, **values: Any) -> Slot:
    return Slot.model_validate({"model": model, "state": "idle", "max_concurrency": 4, **values})


def memory(**values: Any) -> MemoryReport:
    told = {
        "physical_bytes": 8 * GIB,
        "effective_cap_bytes": 6 * GIB,
        "active_bytes": GIB,
        "cache_bytes": 0,
        "activation_reserve_bytes": 0,
        "free_for_load_bytes": 4 * GIB,
    }
    return MemoryReport.model_validate({**told, **values})


def beat(seq: int = 1, status: str = "idle", slots: tuple[Slot, ...] = (), **reported: Any) -> Heartbeat:
    said = {"status": status, "capacity_seq": seq, "memory": memory(**reported), "slots": list(slots)}
    return Heartbeat.model_validate(said)


def view(provider_id: str = "p1", *slots: Slot, now_s: float = 0.0, **values: Any) -> ProviderView:
    """Registered and beating at `now_s`."""
    fresh = fleet.registered(register(provider_id), generation=1, now_s=now_s)
    return replace(fleet.beaten(fresh, beat(slots=slots), now_s), **values)


def listed(*views: ProviderView) -> Views:
    """In this order; the last of those with one id counts."""
    known = Views()
    for one in views:
        known[one.provider_id] = one
    return known
