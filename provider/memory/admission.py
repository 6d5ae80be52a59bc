"""The gate: a reading of memory against a requirement. Every function takes one coherent `Reading` and integers.

A reading counts what is idle and reclaimable as reclaimable and never as free: `usable_for_load` is what can be had
without taking anything from anyone, `ceiling_for_load` what could be had once everything idle has been evicted.
"""

from dataclasses import dataclass

from provider.memory.caps import load_reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Memory at one moment. `available_bytes`: free and reclaimable, as the operating system (a discrete GPU: its
    driver) says; None where it cannot be read, and MLX's own figures then stand alone. `active_bytes` and `cache_bytes`
    are summed over the workers; `idle_bytes` is the part of them that idle, unpinned models hold.

    `machine_cap_bytes`: the cap without the operator's memory_limit_gb, None where there is no limit. A limit bounds
    what this provider takes; it does not make the others' memory its own, so the machine is judged without it.
    """

    physical_bytes: int
    cap_bytes: int
    available_bytes: int | None
    active_bytes: int = 0
    cache_bytes: int = 0
    idle_bytes: int = 0
    machine_cap_bytes: int | None = None

    @property
    def reserve_bytes(self) -> int:
        return load_reserve(self.physical_bytes, self.machine_cap_bytes or self.cap_bytes)

    @property
    def own_bytes(self) -> int:
        return self.active_bytes + self.cache_bytes


def usable_for_load(reading: Reading, outstanding_bytes: int = 0) -> int:
    """`outstanding_bytes`: claims of loads that are under way."""
    unused = reading.physical_bytes - reading.own_bytes - reading.reserve_bytes
    return max(0, min(unused, _reachable(reading, 0)) - outstanding_bytes)


def ceiling_for_load(reading: Reading) -> int:
    """Everything idle evicted."""
    return max(0, _reachable(reading, reading.idle_bytes + reading.cache_bytes))


def max_loadable_weight(reading: Reading, headroom_bytes: int, outstanding_bytes: int = 0) -> int:
    """Weights alone, after headroom, counting all of this provider's own memory as evictable: the heartbeat's
    free_for_load_bytes."""
    return max(0, _reachable(reading, reading.own_bytes) - outstanding_bytes - headroom_bytes)


def can_load(required_bytes: int, reading: Reading, outstanding_bytes: int = 0) -> bool:
    return required_bytes <= usable_for_load(reading, outstanding_bytes)


def eviction_can_reach(required_bytes: int, reading: Reading, outstanding_bytes: int = 0) -> bool:
    """Whether evicting everything idle would make room: asked before the first eviction."""
    return required_bytes <= max(0, ceiling_for_load(reading) - outstanding_bytes)


def fits_at_allocation(required_bytes: int, reading: Reading, outstanding_bytes: int, own_claim_bytes: int) -> bool:
    """Just before weights are read: `outstanding_bytes` holds this load's own claim, which is not held against it."""
    return can_load(required_bytes, reading, max(0, outstanding_bytes - own_claim_bytes))


def live_kv_headroom(reading: Reading, activation_reserve_bytes: int) -> int:
    """Measured after a load: what keys and values could take now."""
    under_cap = max(0, reading.cap_bytes - reading.active_bytes - reading.cache_bytes)
    live = under_cap if reading.available_bytes is None else min(under_cap, reading.available_bytes)
    return max(0, live - activation_reserve_bytes)


def _reachable(reading: Reading, given_back_bytes: int) -> int:
    """Beyond the machine's reserve, and within the operator's limit, once so much of this provider's own memory has
    been given back."""
    kept_bytes = max(0, reading.own_bytes - given_back_bytes)
    available = reading.available_bytes
    if available is None:
        available = reading.physical_bytes - reading.own_bytes
    reachable = min(reading.physical_bytes, available + given_back_bytes) - reading.reserve_bytes
    return reachable if reading.machine_cap_bytes is None else min(reachable, reading.cap_bytes - kept_bytes)
