"""How hot this machine runs, as far as it tells without privileges; nominal where it does not."""

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from provider.readings import integer, read_text, run
from provider.system_memory import MemoryKind

Thermal = Literal["nominal", "fair", "serious", "critical"]
"""In the words of Apple's NSProcessInfo: fair is warm, serious throttles, critical has to cool down."""

MAC_QUERY = ("notifyutil", "-g", "com.apple.system.thermalpressurelevel")
NVIDIA_REASONS = "clocks_event_reasons.hw_thermal_slowdown,clocks_event_reasons.sw_thermal_slowdown"
NVIDIA_QUERY = ("nvidia-smi", f"--query-gpu={NVIDIA_REASONS}", "--format=csv,noheader")
ZONES = Path("/sys/class/thermal")
TRIPS: Mapping[str, Thermal] = {"passive": "fair", "hot": "serious", "critical": "critical"}
"""Linux: at a passive trip the kernel begins to slow the processor down (`active` ones are fans)."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Of Linux' thermal zones: millidegrees, now and by the type of trip."""

    temperature: int
    trips: tuple[tuple[str, int], ...]


def read_thermal(kind: MemoryKind) -> Thermal:
    """`kind` discrete: the GPU's too. Blocks for the time of a command."""
    if platform.system() == "Darwin":
        return mac_thermal(run(*MAC_QUERY) or "")
    gpu = nvidia_thermal(run(*NVIDIA_QUERY) or "") if kind == "discrete" else "nominal"
    return worst((gpu, zone_thermal(_read_zones())))


def mac_thermal(text: str) -> Thermal:
    """`com.apple.system.thermalpressurelevel 0`; 0 to 4 are nominal, moderate, heavy, trapping and sleeping."""
    found = re.search(r"thermalpressurelevel (\d)", text)
    levels: tuple[Thermal, ...] = ("nominal", "fair", "serious", "critical", "critical")
    return "nominal" if found is None else levels[min(int(found[1]), 4)]


def nvidia_thermal(text: str) -> Thermal:
    """Whether the first GPU is slowed down for its heat: by the hardware, by the driver."""
    hardware, _, driver = text.partition("\n")[0].partition(",")
    if hardware.strip() == "Active":
        return "serious"
    return "fair" if driver.strip() == "Active" else "nominal"


def zone_thermal(zones: Iterable[Zone]) -> Thermal:
    reached: list[Thermal] = [
        TRIPS[kind] for zone in zones for kind, at in zone.trips if kind in TRIPS and 0 < at <= zone.temperature
    ]
    return worst(reached)


def worst(states: Iterable[Thermal]) -> Thermal:
    return max(states, key=get_args(Thermal).index, default="nominal")


def _read_zones() -> list[Zone]:
    found = []
    for directory in sorted(ZONES.glob("thermal_zone*")):
        temperature = integer(read_text(f"{directory}/temp"))
        if temperature is not None:
            found.append(Zone(temperature, tuple(_trips(directory))))
    return found


def _trips(zone: Path) -> list[tuple[str, int]]:
    found = []
    for path in sorted(zone.glob("trip_point_*_type")):
        at = integer(read_text(str(path).removesuffix("type") + "temp"))
        if at is not None:
            found.append(((read_text(str(path)) or "").strip(), at))
    return found
