"""Many simulated providers in one process: each with its own residency, engines and coordinator links."""

import asyncio
import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from uuid import NAMESPACE_URL, uuid5

from provider.api.surface import Surface
from provider.catalog import Found, LocalFiles
from provider.config import EngineSection, ProviderConfig, ProviderSection
from provider.link import Link, LinkRefused
from provider.models.checkpoint import Checkpoint
from provider.residency import Residency
from provider.session import Identity
from provider.simulate.machines import Machine, SimulatedRunner
from provider.system_memory import MemoryKind
from provider.thermal import Thermal

log = logging.getLogger(__name__)

DIALS_PER_S = 200
"""They come one after the other, and so beat one after the other."""


class KnownFiles:
    """Implements provider.catalog.Files: every model is read once for all providers."""

    def __init__(self, models: Sequence[str]) -> None:
        """Raises ModelError."""
        files = LocalFiles()
        self._files = files
        self._found = {one: files.find(one) for one in models}

    @property
    def all(self) -> list[Found]:
        return list(self._found.values())

    def find(self, path_or_id: str) -> Found:
        return self._found.get(path_or_id) or self._files.find(path_or_id)

    async def fetch(self, path_or_id: str) -> Found:
        return self._found.get(path_or_id) or await self._files.fetch(path_or_id)

    async def digest(self, checkpoint: Checkpoint) -> str:
        return await self._files.digest(checkpoint)


@dataclass(frozen=True, slots=True)
class Plan:
    """`name`: of the fleet. Its provider `name-7` is the same one whenever a fleet of that name is simulated.
    `trusted`: whom it believes on wss://; None: whom the system believes."""

    name: str
    urls: Sequence[str]
    token: str
    models: Sequence[str]
    max_concurrent: int
    data_dir: Path
    trusted: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    providers: int
    connected: int
    running: int
    requests: int
    tokens: int
    parks: int


class SimulatedProvider:
    def __init__(self, number: int, machine: Machine, files: KnownFiles, plan: Plan) -> None:
        config = ProviderConfig(
            provider=ProviderSection(),
            engine=EngineSection(max_concurrent=plan.max_concurrent, mtp_mode="off"),
            models=tuple(plan.models),
            coordinators=tuple(plan.urls),
            data_dir=plan.data_dir,
            backend="sim",
        )
        name = f"{plan.name}-{number}"
        identity = Identity(
            str(uuid5(NAMESPACE_URL, f"simulated:{name}")), name, version("darkbloom-py"), "sim", machine.hardware
        )
        self.residency = Residency(
            config,
            machine.memory_bytes,
            lambda: SimulatedRunner(machine, files.all),
            machine.read_memory,
            files=files,
            memory_kind=machine.memory_kind,
        )
        surface = Surface(self.residency, time.time, Random(number))
        self.links = [
            Link(url, plan.token, identity, self.residency, surface, Random(number), feel=_cool, trusted=plan.trusted)
            for url in plan.urls
        ]

    async def run(self) -> None:
        """Until it is cancelled. Raises LinkRefused when a coordinator will not have it."""
        try:
            await self.residency.start()
            await asyncio.gather(*(link.run(time.monotonic) for link in self.links))
        finally:
            await self.residency.stop()


class SimulatedFleet:
    """Owner of its providers, which run from `run` on, until it is cancelled."""

    def __init__(self, machines: Sequence[Machine], plan: Plan) -> None:
        """Raises ModelError for a model whose facts cannot be read."""
        files = KnownFiles(plan.models)
        self.providers = [SimulatedProvider(number, one, files, plan) for number, one in enumerate(machines)]

    async def run(self) -> None:
        """Raises the first LinkRefused."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for one in self.providers:
                    tasks.create_task(one.run())
                    await asyncio.sleep(1 / DIALS_PER_S)
        except* LinkRefused as refused:
            raise refused.exceptions[0] from None

    @property
    def ever_connected(self) -> bool:
        return any(link.state.ever_connected for one in self.providers for link in one.links)

    def totals(self) -> Totals:
        stats = [one.residency.stats() for one in self.providers]
        return Totals(
            providers=len(self.providers),
            connected=sum(all(link.state.connected for link in one.links) for one in self.providers),
            running=sum(slot.open for one in self.providers for slot in one.residency.slots),
            requests=sum(one.requests for one in stats),
            tokens=sum(one.tokens for one in stats),
            parks=sum(one.parks for one in stats),
        )


async def _cool(kind: MemoryKind) -> Thermal:
    return "nominal"
