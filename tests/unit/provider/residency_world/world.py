"""One provider and its machine: a real Residency and real Operations, and outside them nothing that is real.

Memory is accounted for to the byte: what others use, what each worker holds. Between two steps of a test everybody
inside has run as far as it can.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from provider.catalog import Model
from provider.config import EngineSection, ProviderConfig, ProviderSection
from provider.generation import GenerationRequest, Sampling
from provider.memory.caps import GIB
from provider.operations import Operations
from provider.protocol import DesiredModel, DesiredModels, PrefetchModel, Wire
from provider.residency import Residency
from provider.system_memory import SystemMemory
from tests.unit.provider.residency_world.builds import Build, ScriptedFiles
from tests.unit.provider.residency_world.gates import Gates
from tests.unit.provider.residency_world.virtual_loop import VirtualLoop
from tests.unit.provider.residency_world.worker import ScriptedWorker

MOST_STEPS = 10_000


class World:
    """`named`: the builds that the operator serves; the others can be fetched. `floors`: GiB by id."""

    def __init__(
        self,
        builds: Iterable[Build],
        named: Iterable[str] | None = None,
        physical_gib: float = 32,
        others_gib: float = 0,
        floors: dict[str, float] | None = None,
        reserve_gib: float = 4,
        limit_gib: float | None = None,
        preload: tuple[str, ...] = (),
        data_dir: Path = Path("/nowhere"),
        engine: EngineSection | None = None,
        **config: Any,
    ) -> None:
        known = list(builds)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.gates = Gates()
        loop.at_end(self.gates.release)
        self.workers: list[ScriptedWorker] = []
        self.physical_bytes = int(physical_gib * GIB)
        self.others_bytes = int(others_gib * GIB)
        self.said: list[Wire] = []
        self.chats: dict[str, asyncio.Task[Any]] = {}
        self.changes = 0
        self.files = ScriptedFiles(known, self.gates)
        self.residency = Residency(
            ProviderConfig(
                provider=ProviderSection(memory_reserve_gb=reserve_gib, memory_limit_gb=limit_gib),
                engine=engine or EngineSection(),
                models=tuple([one.name for one in known] if named is None else named),
                coordinators=(),
                data_dir=data_dir,
                preload=preload,
                **config,
            ),
            self.physical_bytes,
            create_runner=lambda: ScriptedWorker(self),
            read_memory=self._read_memory,
            floors={id: int(size * GIB) for id, size in (floors or {}).items()},
            clock=loop.time,
            files=self.files,
        )
        self.operations = Operations(self.residency)
        self.residency.on_change(self._note_change)

    # What there is

    @property
    def available_bytes(self) -> int:
        return max(0, self.physical_bytes - self.others_bytes - sum(one.held_bytes for one in self.workers))

    @property
    def resident(self) -> set[str]:
        return {one.id for one in self.residency.occupancy.residents}

    def model(self, id: str) -> Model:
        return self.residency.occupancy.models[id]

    def worker(self, id: str) -> ScriptedWorker:
        [found] = [one for one in self.workers if one.build.name == id]
        return found

    def build_of(self, directory: str) -> Build:
        return self.files.builds[directory]

    async def _read_memory(self) -> SystemMemory:
        told: SystemMemory | None = await self.gates.wait("memory")
        return self.memory() if told is None else told

    def memory(self) -> SystemMemory:
        """As it is at this moment."""
        return SystemMemory(
            physical_bytes=self.physical_bytes,
            available_bytes=self.available_bytes,
            pressure=None,
            read_at_s=self.loop.time(),
        )

    def _note_change(self) -> None:
        self.changes += 1

    # One step at a time

    async def open(self, *names: str, result: Any = None) -> None:
        """Opens the oldest gate of each name, in this order."""
        for name in names:
            self.gates.open(name, result)
            await self.loop.settle()

    async def open_until(self, name: str) -> None:
        """Opens whatever comes first, until somebody waits at a gate of that name."""
        for _ in range(MOST_STEPS):
            if any(one.startswith(name) for one in self.gates.names):
                return
            await self.open("")
        raise AssertionError(f"nobody comes to {name!r}")

    async def open_all(self, but: tuple[str, ...] = ()) -> None:
        """Opens everything in its order, until nobody waits at any gate but these."""
        await self.loop.settle()
        for _ in range(MOST_STEPS):
            free = [one for one in self.gates.names if not one.startswith(but)] if but else self.gates.names
            if not free:
                return
            await self.open(free[0])
        raise AssertionError(f"it never ends: {self.gates.names}")

    async def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Starts it and lets it run to its first suspension."""
        task = asyncio.create_task(work)
        await self.loop.settle()
        return task

    async def complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Its result, every gate opened in its order."""
        task = await self.begin(work)
        await self.open_all()
        assert task.done(), f"it waits for something else; the time is {self.loop.time()}"
        return task.result()

    async def pass_time(self, seconds: int) -> None:
        """Second by second, with every gate open."""
        for _ in range(seconds):
            await self.open_all()
            await self.loop.advance(1)
        await self.open_all()

    async def load(self, *ids: str) -> None:
        for id in ids:
            await self.complete(self.residency.load(id))
            await self.loop.advance(1)

    # Requests

    async def chat(self, id: str, model: str, needs_gib: float = 0.1) -> "asyncio.Task[Any]":
        """A request that stays open until the test ends it; `needs_gib`: KV it will have taken in the end."""
        request = GenerationRequest(
            request_id=id, prompt=[1], max_tokens=int(needs_gib * GIB), sampling=Sampling(temperature=0)
        )

        async def run() -> str:
            async with aclosing(self.residency.generate(model, request)) as events:
                return "".join([one.text async for one in events if hasattr(one, "text")])

        task = self.chats[id] = await self.begin(run())
        return task

    async def finish(self, id: str, model: str) -> None:
        self.worker(model).finish(id)
        await self.loop.settle()

    async def die(self, model: str, how: str = "signal 9") -> None:
        self.worker(model).die(how)
        await self.loop.settle()

    # What a coordinator asks

    def desire(self, revision: int, *names: str, digest: str | None = None) -> None:
        models = [DesiredModel(id=one, source=one, digest=digest) for one in names]
        self.operations.handle(DesiredModels(revision=revision, models=models), self.said.append)

    def prefetch(self, id: str, source: str | None = None, digest: str | None = None) -> None:
        asked = PrefetchModel(model_id=id, source=source or id, digest=digest)
        self.operations.handle(asked, self.said.append)
