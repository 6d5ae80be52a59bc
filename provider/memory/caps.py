"""What a machine may spend on inference: caps and the KV budget. Integer bytes; sums saturate at 0."""

GIB = 2**30
CAP_FRACTION = 0.90
"""Of physical memory. Source: the open-source darkbloom provider."""
OS_FLOOR_BYTES = 2 * GIB
"""Always left to the operating system."""
DEFAULT_ACTIVATION_RESERVE_BYTES = 11 * GIB // 2
"""5.5 GiB: measured by darkbloom on its worst model at batch 8, plus slack."""
MINIMUM_KV_BYTES = GIB


def hard_cap(physical_bytes: int) -> int:
    return min(int(CAP_FRACTION * physical_bytes), max(physical_bytes - OS_FLOOR_BYTES, 0))


def effective_cap(physical_bytes: int, reserve_bytes: int, limit_bytes: int | None = None) -> int:
    """`reserve_bytes` and `limit_bytes` are the operator's memory_reserve_gb and memory_limit_gb."""
    cap = max(0, min(hard_cap(physical_bytes), physical_bytes - reserve_bytes))
    return cap if limit_bytes is None else min(cap, limit_bytes)


def minimum_serviceable_kv(full_context_bytes: int, max_concurrent: int) -> int:
    """The smallest KV room worth serving with; `full_context_bytes` is one sequence's at its whole context."""
    return min(MINIMUM_KV_BYTES, max_concurrent * full_context_bytes)


def kv_budget(cap_bytes: int, weight_bytes: int, activation_reserve_bytes: int) -> int:
    return max(0, cap_bytes - weight_bytes - activation_reserve_bytes)
