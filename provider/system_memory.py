"""What memory there is for models at this moment: how much, how much could be taken, and how pressed the system is.

A reading that fails is None, never 0: "unknown" and "nothing left" are different answers. A reading carries the
moment it was taken, and a stale one is not decided upon.
"""

import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import psutil

from provider.cgroup import cgroup_memory
from provider.readings import ReadText, integer, least, read_text, run

MemoryKind = Literal["unified", "discrete", "host"]
"""Whose memory a model's weights occupy: a Mac's, shared with its GPU; a discrete GPU's own; a host's."""

STALE_S = 2.0
"""Another program can take gigabytes within seconds."""
SOME_STALLED = 10.0
FULL_STALLED = 5.0
"""Percent of the last ten seconds in which some, or all, tasks waited for memory (Linux PSI)."""
NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""Of CUDA, which the driver's tool does not heed: the first one named is the one that MLX uses."""
MAC_MEMORY, MAC_PRESSURE = "hw.memsize", "kern.memorystatus_vm_pressure_level"


class Pressure(StrEnum):
    """As the operating system sees it, over all of its memory."""

    NORMAL = "normal"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMemory:
    """Of the memory that models occupy. `available_bytes`: free and reclaimable, clean file cache included, within
    a container's limits; `file_cache_bytes` is that part of it. `read_at_s` is monotonic time."""

    physical_bytes: int | None
    available_bytes: int | None
    pressure: Pressure | None
    read_at_s: float
    file_cache_bytes: int | None = None

    def age_s(self, now_s: float) -> float:
        return now_s - self.read_at_s

    def is_stale(self, now_s: float) -> bool:
        return self.age_s(now_s) > STALE_S


@dataclass(frozen=True, slots=True)
class MemoryReader:
    """Reads afresh each time. Blocks for the time of a command or two on a Mac or with a discrete GPU."""

    kind: MemoryKind

    def read(self) -> SystemMemory:
        return read_system_memory(self.kind)


def read_system_memory(
    kind: MemoryKind, now: Callable[[], float] = time.monotonic, env: Mapping[str, str] = os.environ
) -> SystemMemory:
    """`kind` discrete: the GPU's own memory, by its driver; the pressure is the host's all the same."""
    read_at_s = now()
    found = _read_mac(read_at_s) if platform.system() == "Darwin" else read_linux(read_at_s)
    if kind != "discrete":
        return found
    said = run(*nvidia_query(env.get(VISIBLE_GPUS)))
    gpu = None if said is None else parse_nvidia_smi(said)
    total, free = (None, None) if gpu is None else gpu
    return replace(found, physical_bytes=total, available_bytes=free, file_cache_bytes=None)


# macOS


def _read_mac(read_at_s: float) -> SystemMemory:
    sysctl = parse_sysctl(run("sysctl", MAC_MEMORY, MAC_PRESSURE) or "")
    said = run("vm_stat")
    return SystemMemory(
        physical_bytes=integer(sysctl.get(MAC_MEMORY)) or psutil_bytes("total"),
        available_bytes=psutil_bytes("available") if said is None else parse_vm_stat(said),
        pressure=mac_pressure(sysctl.get(MAC_PRESSURE)),
        read_at_s=read_at_s,
        file_cache_bytes=None if said is None else vm_stat_file_cache(said),
    )


def parse_sysctl(text: str) -> dict[str, str]:
    """`name: value` lines."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and value.strip()}


def parse_vm_stat(text: str) -> int | None:
    """Free, speculative (read ahead of files), inactive and purgeable pages of `vm_stat`, in bytes."""
    pages = _vm_stat_pages(text)
    if "Pages free" not in pages or "Pages inactive" not in pages:
        return None
    return sum(pages.get(f"Pages {kind}", 0) for kind in ("free", "speculative", "inactive", "purgeable"))


def vm_stat_file_cache(text: str) -> int | None:
    """Bytes of pages that files fill; no more of them than of what could be taken at all is reclaimable."""
    return least(_vm_stat_pages(text).get("File-backed pages"), parse_vm_stat(text))


def mac_pressure(level: str | None) -> Pressure | None:
    """1, 2 and 4 are the kernel's own numbers (sys/kern_memorystatus.h)."""
    return {"1": Pressure.NORMAL, "2": Pressure.WARNING, "4": Pressure.CRITICAL}.get(level or "")


def _vm_stat_pages(text: str) -> dict[str, int]:
    """In bytes by name; empty when the page size is not told."""
    size = re.search(r"page size of (\d+) bytes", text)
    if size is None:
        return {}
    found = re.findall(r"^([\w -]+):\s+(\d+)\.?$", text, re.MULTILINE)
    return {name: int(count) * int(size[1]) for name, count in found}


# Linux, and whatever psutil knows


def read_linux(read_at_s: float, read: ReadText = read_text) -> SystemMemory:
    meminfo = parse_meminfo(read("/proc/meminfo") or "")
    groups = list(cgroup_memory(read))
    physical = meminfo.get("MemTotal") or psutil_bytes("total")
    available = meminfo.get("MemAvailable", psutil_bytes("available"))
    within = min((one for one in groups), key=lambda one: one.available_bytes, default=None)
    limited = within is not None and (available is None or within.available_bytes < available)
    cache = within.file_cache_bytes if limited and within is not None else _file_cache(meminfo)
    pressures = map(parse_pressure, (read("/proc/pressure/memory") or "", read("/sys/fs/cgroup/memory.pressure") or ""))
    return SystemMemory(
        physical_bytes=least(physical, *(one.limit_bytes for one in groups)),
        available_bytes=least(available, *(one.available_bytes for one in groups)),
        pressure=max((one for one in pressures if one is not None), key=list(Pressure).index, default=None),
        read_at_s=read_at_s,
        file_cache_bytes=cache,
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = re.findall(r"^([\w()]+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(value) * 1024 for name, value in found}


def parse_pressure(text: str) -> Pressure | None:
    """Of pressure stall information: how much of the last ten seconds tasks waited for memory."""
    stalled = {kind: float(share) for kind, share in re.findall(r"^(some|full) avg10=(\d+\.\d+)", text, re.MULTILINE)}
    if "some" not in stalled:
        return None
    if stalled.get("full", 0.0) >= FULL_STALLED:
        return Pressure.CRITICAL
    return Pressure.WARNING if stalled["some"] >= SOME_STALLED else Pressure.NORMAL


def _file_cache(meminfo: Mapping[str, int]) -> int | None:
    """Clean pages of files, as far as they count as available."""
    cached = [meminfo[name] for name in ("Active(file)", "Inactive(file)") if name in meminfo]
    if not cached:
        return None
    clean = max(0, sum(cached) - meminfo.get("Dirty", 0) - meminfo.get("Writeback", 0))
    return least(clean, meminfo.get("MemAvailable"))


# A discrete GPU


def nvidia_query(visible: str | None) -> tuple[str, ...]:
    """The driver's tool, asked for the GPU that MLX uses: the first of those that are visible."""
    first = (visible or "").partition(",")[0].strip()
    return (*NVIDIA_QUERY, "-i", first) if first else NVIDIA_QUERY


def parse_nvidia_smi(text: str) -> tuple[int, int] | None:
    """Total and free bytes of the first GPU, from lines of MiB; None where the driver does not tell ([N/A])."""
    found = re.match(r"\s*(\d+),\s*(\d+)\s*$", text.partition("\n")[0])
    return None if found is None else (int(found[1]) * 2**20, int(found[2]) * 2**20)


def psutil_bytes(field: Literal["total", "available"]) -> int | None:
    try:
        return int(getattr(psutil.virtual_memory(), field))
    except (OSError, RuntimeError, AttributeError):
        return None
