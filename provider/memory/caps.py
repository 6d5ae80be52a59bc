"""What a machine may spend on inference: caps, the operator's reserve and the KV budget.

Integer bytes; sums saturate at 0. `physical_bytes` is of the memory that models occupy: a Mac's or a
host's whole memory (or its container's limit), a discrete GPU's own.
"""

import math
from fractions import Fraction

GIB = 2**30
CAP_FRACTION = 0.90
"""Of physical memory. Source: the open-source darkbloom provider; `DARKBLOOM_MEM_CAP_FRACTION` replaces it."""
OS_FLOOR_BYTES = 2 * GIB
"""Always left to the operating system."""
MINIMUM_KV_BYTES = GIB


def cap_fraction(told: str | None) -> float:
    """`DARKBLOOM_MEM_CAP_FRACTION` as it was written: what is no number above 0 is as if unset, above 1 is 1."""
    value = _number(told)
    return CAP_FRACTION if value is None or value <= 0 else min(value, 1.0)


def gib_to_bytes(told: str | None) -> int | None:
    """A variable in GiB, decimals allowed; None for what is no finite number above 0."""
    value = _number(told)
    return gib(value) if value is not None and value > 0 else None


def gib(count: float) -> int:
    """In bytes, of any finite number however large."""
    return int(Fraction(count) * GIB)


def hard_cap(physical_bytes: int, fraction: float = CAP_FRACTION) -> int:
    return max(0, min(int(fraction * physical_bytes), physical_bytes - OS_FLOOR_BYTES))


def effective_cap(
    physical_bytes: int, reserve_bytes: int, limit_bytes: int | None = None, fraction: float = CAP_FRACTION
) -> int:
    """`reserve_bytes` and `limit_bytes` are the operator's memory_reserve_gb and memory_limit_gb."""
    cap = max(0, min(hard_cap(physical_bytes, fraction), physical_bytes - reserve_bytes))
    return cap if limit_bytes is None else min(cap, limit_bytes)


def load_reserve(physical_bytes: int, cap_bytes: int) -> int:
    """What every load leaves alone: all that lies beyond the effective cap."""
    return max(0, physical_bytes - cap_bytes)


def minimum_serviceable_kv(full_context_bytes: int, max_concurrent: int) -> int:
    """The smallest KV room worth serving with; `full_context_bytes` is one sequence's at its whole context."""
    return min(MINIMUM_KV_BYTES, max_concurrent * full_context_bytes)


def kv_budget(cap_bytes: int, resident_bytes: int, activation_reserve_bytes: int) -> int:
    """What all keys, values and states of all models may take; `resident_bytes` is measured, weights and baselines."""
    return max(0, cap_bytes - resident_bytes - activation_reserve_bytes)


def _number(told: str | None) -> float | None:
    try:
        value = float(told or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
