"""What this machine is: chip, cores, memory and what the operating system says is free. Facts only.

A reading that fails is None, never 0: "unknown" and "nothing left" are different answers.
"""

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import psutil

MemoryKind = Literal["unified", "discrete", "host"]
ReadText = Callable[[str], str | None]
"""The content of a file, or None when it cannot be read."""

COMMAND_TIMEOUT_S = 5.0
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
UNIFIED_NVIDIA = ("GB10",)
"""NVIDIA chips whose GPU shares the memory of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """`physical_bytes` and `available_bytes` honour a container's limits; `mlx_device` is read on demand."""

    system: str
    machine: str
    python: str
    chip: str | None
    cores: int | None
    physical_bytes: int | None
    available_bytes: int | None
    memory_kind: MemoryKind
    mlx_device: str | None = None


def read_hardware(with_mlx: bool = False) -> Hardware:
    """`with_mlx` imports mlx in this process and names the device it would use."""
    system = platform.system()
    facts = _read_mac() if system == "Darwin" else _read_linux()
    gpu = _nvidia_gpu()
    return Hardware(
        system=system,
        machine=platform.machine(),
        python=platform.python_version(),
        chip=gpu or facts.chip,
        cores=facts.cores,
        physical_bytes=facts.physical_bytes,
        available_bytes=facts.available_bytes,
        memory_kind=memory_kind(system, platform.machine(), gpu),
        mlx_device=_mlx_device() if with_mlx else None,
    )


def read_available_bytes() -> int | None:
    """What the operating system says could be taken now, reclaimable pages included: the moving part alone."""
    if platform.system() != "Darwin":
        return _read_linux().available_bytes
    said = _run("vm_stat")
    return None if said is None else parse_vm_stat(said)


@dataclass(frozen=True, slots=True)
class SystemFacts:
    chip: str | None
    cores: int | None
    physical_bytes: int | None
    available_bytes: int | None


def memory_kind(system: str, machine: str, gpu: str | None) -> MemoryKind:
    """Which memory a model's weights occupy (docs/architecture.md)."""
    if system == "Darwin" and machine == "arm64":
        return "unified"
    if gpu is None:
        return "host"
    return "unified" if any(name in gpu for name in UNIFIED_NVIDIA) else "discrete"


# macOS


def _read_mac() -> SystemFacts:
    names = ("machdep.cpu.brand_string", "hw.memsize", "hw.ncpu")
    sysctl = parse_sysctl(_run("sysctl", *names) or "")
    vm_stat = _run("vm_stat")
    return SystemFacts(
        chip=sysctl.get(names[0]),
        cores=_integer(sysctl.get(names[2])) or os.cpu_count(),
        physical_bytes=_integer(sysctl.get(names[1])) or _psutil_bytes("total"),
        available_bytes=_psutil_bytes("available") if vm_stat is None else parse_vm_stat(vm_stat),
    )


def parse_sysctl(text: str) -> dict[str, str]:
    """`name: value` lines."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and value.strip()}


def parse_vm_stat(text: str) -> int | None:
    """Free, inactive and purgeable pages of `vm_stat`, in bytes."""
    page = re.search(r"page size of (\d+) bytes", text)
    pages = [re.search(rf"^Pages {kind}:\s+(\d+)", text, re.MULTILINE) for kind in ("free", "inactive", "purgeable")]
    if page is None or pages[0] is None or pages[1] is None:
        return None
    return int(page[1]) * sum(int(found[1]) for found in pages if found is not None)


# Linux, and whatever psutil knows


def _read_linux(read: ReadText | None = None) -> SystemFacts:
    read = read or _read_text
    meminfo = parse_meminfo(read("/proc/meminfo") or "")
    limits = list(cgroup_memory(read))
    physical = meminfo.get("MemTotal") or _psutil_bytes("total")
    available = meminfo.get("MemAvailable", _psutil_bytes("available"))
    return SystemFacts(
        chip=parse_cpuinfo(read("/proc/cpuinfo") or "") or platform.processor() or None,
        cores=_usable_cores(),
        physical_bytes=_least(physical, [one.limit_bytes for one in limits]),
        available_bytes=_least(available, [one.available_bytes for one in limits]),
    )


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(value) * 1024 for name, value in found}


def parse_cpuinfo(text: str) -> str | None:
    """The model of the first processor; ARM kernels give none."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(\S.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """One control group's limit, and what it has charged that cannot be reclaimed at once."""

    limit_bytes: int
    used_bytes: int

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def cgroup_memory(read: ReadText) -> Iterator[CgroupMemory]:
    """Every limit on this process's way up to the root, of cgroup v2 and v1.

    Inside a container the path of /proc/self/cgroup may be the host's and not exist; its mounted root then
    carries the limit.
    """
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _limits(read, "/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _limits(
                read,
                "/sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _limits(
    read: ReadText, root: str, path: str, limit_file: str, usage_file: str, reclaimable: str
) -> Iterator[CgroupMemory]:
    group = PurePosixPath(path)
    for ancestor in (group, *group.parents):
        directory = f"{root}{ancestor}".rstrip("/")
        limit = _integer(read(f"{directory}/{limit_file}"))
        usage = _integer(read(f"{directory}/{usage_file}"))
        if limit is None or usage is None:  # "max", or no such group from here
            continue
        cache = re.search(rf"^{reclaimable} (\d+)$", read(f"{directory}/memory.stat") or "", re.MULTILINE)
        yield CgroupMemory(limit, max(0, usage - (int(cache[1]) if cache else 0)))


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


# Readings


def _nvidia_gpu() -> str | None:
    """The first GPU's model, as the NVIDIA driver names it."""
    for path in sorted(NVIDIA_GPUS.glob("*/information")):
        found = re.search(r"^Model:\s*(\S.*)$", _read_text(str(path)) or "", re.MULTILINE)
        if found:
            return found[1].strip()
    return None


def _mlx_device() -> str | None:
    from provider.backends.mlx.device import device_name

    return device_name()


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _psutil_bytes(field: Literal["total", "available"]) -> int | None:
    try:
        return int(getattr(psutil.virtual_memory(), field))
    except (OSError, RuntimeError, AttributeError):
        return None


def _least(value: int | None, limits: list[int]) -> int | None:
    """The smallest of what is known: a limit above the machine's own memory limits nothing."""
    return min((one for one in (value, *limits) if one is not None), default=None)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
