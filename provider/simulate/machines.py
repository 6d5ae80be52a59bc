"""Machines that are not there: what each of them is, and how a model runs on it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from provider.backends.sim import SimBackend
from provider.backends.sim_timing import DEVICES, Device, LeadingClock
from provider.building import engine_around, sim_facts
from provider.catalog import Found
from provider.engine import Engine
from provider.errors import ConfigError
from provider.heads import inactive
from provider.memory.caps import GIB
from provider.mtp.policy import Off, Reason
from provider.parking.lot import Tiers
from provider.pipe import ExactReport, Loaded, LoadSpec
from provider.protocol import Hardware
from provider.runner import InlineRunner, OnReport
from provider.system_memory import MemoryKind, SystemMemory
from provider.telling import loaded_of

LOAD_BYTES_PER_S = 2e9
"""Weights from an NVMe disk into memory."""
TIERS = Tiers(disk_bytes=20 * GIB)
NOT_DRAFTED = Off(Reason.ENGINE_INACTIVE, "the simulated backend drafts nothing")


@dataclass(frozen=True, slots=True)
class Machine:
    """`device`: whose speed its models have."""

    device: Device
    memory_bytes: int
    memory_kind: MemoryKind
    cores: int

    @property
    def hardware(self) -> Hardware:
        return Hardware(
            chip=f"simulated {self.device.name}",
            memory_bytes=self.memory_bytes,
            memory_kind=self.memory_kind,
            cores=self.cores,
        )

    async def read_memory(self) -> SystemMemory:
        """Nobody else is on it: what the workers measure is all that is used."""
        physical_bytes, now_s = self.memory_bytes, time.monotonic()
        return SystemMemory(physical_bytes=physical_bytes, available_bytes=None, pressure=None, read_at_s=now_s)


MACHINES = {
    "m3-max": Machine(DEVICES["m3-max"], 64 * GIB, "unified", 16),
    "h100": Machine(DEVICES["h100"], 80 * GIB, "discrete", 32),
    "slow-cpu": Machine(DEVICES["slow-cpu"], 16 * GIB, "host", 2),
    "instant": Machine(DEVICES["instant"], 64 * GIB, "unified", 16),
    "paced": Machine(DEVICES["paced"], 64 * GIB, "unified", 16),
}


def machines(kinds: Sequence[str], count: int) -> list[Machine]:
    """`count` of them, of these kinds in turn. Raises ConfigError for a kind there is none of."""
    for kind in kinds:
        if kind not in MACHINES:
            raise ConfigError(f"--machine {kind!r}: expected one of {', '.join(MACHINES)}.")
    return list(islice(cycle(MACHINES[kind] for kind in kinds), count))


class SimulatedRunner(InlineRunner):
    """A worker of such a machine; a load takes as long as reading the weights from its disk."""

    def __init__(self, machine: Machine, found: Sequence[Found]) -> None:
        super().__init__(self._engine)
        self._machine = machine
        self._found = {str(one.checkpoint.directory): one for one in found}

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        await asyncio.sleep(self._load_s(spec))
        return await super().start(spec, on_report)

    def _engine(self, spec: LoadSpec, clock: LeadingClock) -> tuple[Engine, Loaded]:
        found = self._found[spec.directory]
        facts = sim_facts(found.checkpoint, self._machine.device)
        backend = SimBackend(facts, self._machine.device, clock, tiers=TIERS)
        engine = engine_around(spec, backend, found.tokenizer.decode, clock)
        return engine, loaded_of(engine, inactive(NOT_DRAFTED), ExactReport(), self._load_s(spec), baseline_bytes=0)

    def _load_s(self, spec: LoadSpec) -> float:
        return self._found[spec.directory].checkpoint.size_bytes / LOAD_BYTES_PER_S
