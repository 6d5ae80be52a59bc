"""What this machine is: chip, cores, memory and what the operating system says is free. Facts only.

A reading that fails is None, never 0: "unknown" and "nothing left" are different answers.
"""

import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from provider.readings import integer, read_text, run
from provider.system_memory import MemoryKind, MemoryReader, Pressure, SystemMemory, parse_sysctl, read_system_memory

__all__ = [
    "Hardware",
    "MemoryKind",
    "MemoryReader",
    "Pressure",
    "SystemMemory",
    "memory_in_use",
    "memory_kind",
    "read_hardware",
    "read_system_memory",
]

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
UNIFIED_NVIDIA = ("GB10",)
"""NVIDIA chips whose GPU shares the memory of the machine."""
CUDA_BUILD = "mlx-cuda"
MAC_CHIP, MAC_CORES = "machdep.cpu.brand_string", "hw.ncpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """`physical_bytes` and `available_bytes` are the host's, within a container's limits, also beside a discrete GPU
    (read_system_memory has that one's own); `mlx_device` is read on demand."""

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
    system, machine = platform.system(), platform.machine()
    gpu = _nvidia_gpu()
    host = read_system_memory("host")
    on_mac = parse_sysctl(run("sysctl", MAC_CHIP, MAC_CORES) or "") if system == "Darwin" else {}
    return Hardware(
        system=system,
        machine=machine,
        python=platform.python_version(),
        chip=gpu or on_mac.get(MAC_CHIP) or _linux_chip(),
        cores=integer(on_mac.get(MAC_CORES)) or _usable_cores(),
        physical_bytes=host.physical_bytes,
        available_bytes=host.available_bytes,
        memory_kind=memory_kind(system, machine, gpu),
        mlx_device=_mlx_device() if with_mlx else None,
    )


def memory_kind(system: str, machine: str, gpu: str | None) -> MemoryKind:
    """Which memory a model's weights occupy (docs/memory.md)."""
    if system == "Darwin" and machine == "arm64":
        return "unified"
    if gpu is None:
        return "host"
    return "unified" if any(name in gpu for name in UNIFIED_NVIDIA) else "discrete"


def memory_in_use(kind: MemoryKind, packages: Iterable[str] | None = None) -> MemoryKind:
    """Whose memory models occupy with the MLX that is installed: its CPU build leaves a discrete GPU alone."""
    if kind != "discrete":
        return kind
    names = _installed_packages() if packages is None else packages
    return "discrete" if any(name.startswith(CUDA_BUILD) for name in names) else "host"


def _installed_packages() -> Iterator[str]:
    return (one.metadata["Name"].lower() for one in distributions())


def parse_cpuinfo(text: str) -> str | None:
    """The model of the first processor; ARM kernels give none."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(\S.*)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def _linux_chip() -> str | None:
    return parse_cpuinfo(read_text("/proc/cpuinfo") or "") or platform.processor() or None


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _nvidia_gpu() -> str | None:
    """The first GPU's model, as the NVIDIA driver names it."""
    for path in sorted(NVIDIA_GPUS.glob("*/information")):
        found = re.search(r"^Model:\s*(\S.*)$", read_text(str(path)) or "", re.MULTILINE)
        if found:
            return found[1].strip()
    return None


def _mlx_device() -> str | None:
    from provider.backends.mlx.device import device_name

    return device_name()
