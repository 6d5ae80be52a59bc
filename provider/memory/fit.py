"""Does a model fit: the one verdict that the load gate acts on and that doctor prints."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from provider.memory.admission import Reading, ceiling_for_load, usable_for_load
from provider.memory.caps import GIB, effective_cap

DEFAULT_RESERVE_BYTES = 4 * GIB
"""The operator's reserve where provider.toml says nothing."""
MACHINES_GIB = (8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)
"""Sizes that are sold."""
TIGHT_BYTES = 2 * GIB


class Fit(StrEnum):
    PASS = "pass"
    """It can be loaded now."""
    WARN = "warn"
    """It can be loaded once idle models have been evicted."""
    FAIL = "fail"
    """It cannot be loaded on this machine as it is."""


def fit(required_bytes: int, reading: Reading, outstanding_bytes: int = 0) -> Fit:
    if required_bytes <= usable_for_load(reading, outstanding_bytes):
        return Fit.PASS
    reachable = max(0, ceiling_for_load(reading) - outstanding_bytes)
    return Fit.WARN if required_bytes <= reachable else Fit.FAIL


def largest_machine_fit(required_bytes: int, cap_bytes: int) -> bool:
    """Whether it could ever be loaded here, on an idle machine with nothing else running."""
    return required_bytes <= cap_bytes


@dataclass(frozen=True, slots=True)
class Alternative:
    """A model that may be served instead, with its own requirement."""

    id: str
    size_bytes: int
    required_bytes: int


def fitting(candidates: Iterable[Alternative], ceiling_bytes: int) -> list[Alternative]:
    """Those that fit, the largest first."""
    found = [one for one in candidates if one.required_bytes <= ceiling_bytes]
    return sorted(found, key=lambda one: (-one.size_bytes, one.id))


def largest_loadable_size(ceiling_bytes: int, headroom_bytes: int) -> int:
    """Of a checkpoint on disk, in bytes, that the gate would still let in."""
    return max(0, ceiling_bytes - headroom_bytes) * 5 // 6


@dataclass(frozen=True, slots=True)
class Machine:
    """`tight`: what must be free is within 2 GiB of all there is; it fits on an idle machine, and hardly else."""

    size_gib: int
    tight: bool


def smallest_machine(required_bytes: int, reserve_bytes: int = DEFAULT_RESERVE_BYTES) -> Machine | None:
    """The smallest one whose effective cap passes the gate on an idle machine; None when not even the largest does."""
    for size in MACHINES_GIB:
        spare = effective_cap(size * GIB, reserve_bytes) - required_bytes
        if spare >= 0:
            return Machine(size, spare <= TIGHT_BYTES)
    return None
