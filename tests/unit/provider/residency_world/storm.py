"""Everything that may happen to a provider, in an order that a seed draws."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from provider.errors import DarkbloomError, ModelError, RequestFailed, SelfTestFailed, WorkerError
from provider.loading import LoadRefused
from provider.memory.caps import GIB
from provider.slot import ModelSlot
from tests.unit.provider.residency_world.builds import Build, build
from tests.unit.provider.residency_world.invariants import check, check_admitted, check_rest
from tests.unit.provider.residency_world.world import World

SIZES_GIB = (1, 2, 4, 6, 10, 14, 18)
NAMED, FETCHED = ("a", "b", "c"), ("x", "y")
STARTS = (None,) * 16 + (ModelError("broken"), SelfTestFailed("nonsense"), WorkerError("gone"), WorkerError("gone"))


class Storm:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.count = 0
        self.came_back = 0
        self.revision = 0
        self.fetches_alone = self.random.random() < 0.5
        frail = self.random.random() < 0.5
        self.wanted = set[str]()
        self.cursed = set[str]()
        builds = [self._build(name) for name in (*NAMED, *FETCHED)]
        builds += [self._build(f"{name}@2", digest="b2" * 32) for name in FETCHED]
        floors = {one: self.random.choice((0.5, 1, 3)) for one in (*NAMED, *FETCHED) if self.random.random() < 0.6}
        pinned = (self.random.choice(NAMED),) if self.random.random() < 0.2 else ()
        self.world = World(builds, NAMED, physical_gib=self.random.choice((24, 32, 48)), floors=floors, pinned=pinned)
        self.acts: dict[Callable[[], Awaitable[None]], int] = {
            self.open: 60, self.load: 8, self.unload: 4, self.chat: 10, self.end_chat: 6, self.cancel_chat: 3,
            self.die: 3, self.others: 4, self.think: 2, self.prefetch: 4, self.desire: 4, self.withdraw: 1,
            self.retire: 1, self.look: 3, self.capacity: 3, self.time: 5, self.long_time: 1,
            self.curse: 4 if frail else 0, self.lift: 1, self.minutes: 4 if frail else 0,
        }  # fmt: skip

    def _build(self, name: str, **more: Any) -> Build:
        size = self.random.choice(SIZES_GIB)
        loaded = int(size * GIB * self.random.choice((0.9, 1.0, 1.1, 1.1, 1.3)))
        baseline = int(size * GIB * 0.05)
        kv_kib = self.random.choice((4, 24, 48, 96))
        return build(name, size, loaded_bytes=loaded, baseline_bytes=baseline, kv_kib=kv_kib, **more)

    async def run(self, steps: int) -> None:
        await self.world.residency.start()
        for _ in range(steps):
            [act] = self.random.choices(list(self.acts), list(self.acts.values()))
            before = list(self.world.workers)
            await act()
            await self.world.loop.settle()
            check(self.world)
            for worker in self.world.workers:
                if worker not in before and not worker.loaded:
                    check_admitted(self.world, worker)
        await self.rest()

    async def rest(self) -> None:
        """Chats end, the others give their memory back, and everything that waits is let through."""
        self.note("rest")
        self.world.others_bytes = 0
        self.cursed.clear()
        for task in self.world.chats.values():
            task.cancel()
        for _ in range(90):
            await self.world.open_all()
            check(self.world)
            await self.world.loop.advance(1)
        for name, task in {**self.tasks, **self.world.chats}.items():
            assert task.done(), f"{name} waits for ever"
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, DarkbloomError), f"{name}: {error!r}"
        await check_rest(self.world)
        await self.come_back()
        if not self.fetches_alone:
            assert set(self.world.residency.advertised_ids) <= {*NAMED, *self.wanted}, "served, and no longer desired"

    async def come_back(self) -> None:
        """Who had been given up is loaded again once it has cooled off, if there is room."""
        residency = self.world.residency
        for id in residency.advertised_ids:
            slot = self.world.model(id).slot
            if not slot.standing.failures:
                continue
            await self.world.loop.advance(slot.standing.retry_in_s or 0.0)
            with contextlib.suppress(LoadRefused):
                await self.world.complete(residency.load(id))
                self.came_back += 1
            await check_rest(self.world)

    def note(self, *words: object) -> None:
        self.trace.append(" ".join(map(str, words)))

    async def begin(self, name: str, work: Any) -> None:
        self.count += 1
        self.note(name)
        self.tasks[f"{self.count} {name}"] = await self.world.begin(work)

    def any_model(self) -> str:
        return self.random.choice(sorted(self.world.residency.occupancy.models))

    # What may happen

    async def open(self) -> None:
        names = self.world.gates.names
        if not names:
            return
        name = self.random.choice(names)
        result: Any = None
        if name.startswith("start:") and name.removeprefix("start:").partition("@")[0] in self.cursed:
            result = WorkerError("cursed")
        elif name.startswith("start:"):
            result = self.random.choice(STARTS)
        elif name.startswith("digest:") and self.random.random() < 0.1:
            result = "another"
        elif name.startswith("fetch:") and self.random.random() < 0.1:
            result = ModelError("no such model")
        self.note("open", name, repr(result) if result else "")
        self.world.gates.open(name, result)

    async def load(self) -> None:
        id = self.any_model()
        await self.begin(f"load {id}", self.world.residency.load(id))

    async def unload(self) -> None:
        id = self.any_model()
        await self.begin(f"unload {id}", self.world.residency.unload(id))

    async def look(self) -> None:
        id = self.any_model()
        await self.begin(f"pre_accept {id}", self.world.residency.pre_accept(id))

    async def capacity(self) -> None:
        await self.begin("capacity", self.world.residency.capacity())

    async def chat(self) -> None:
        self.count += 1
        id = self.any_model()
        self.note("chat", self.count, id)
        slot, loading = self.world.model(id).slot, id in self.world.residency.occupancy.loading
        failed = slot.status == "failed" and not loading and id in self.world.residency.advertised_ids
        chat = await self.world.chat(str(self.count), id, self.random.choice((0.1, 0.5, 2.0, 8.0)))
        if failed:
            check_refused_at_once(chat, slot)

    async def end_chat(self) -> None:
        open_chats = [(worker, id) for worker in self.world.workers if worker.alive for id in worker.chats]
        if open_chats:
            worker, id = self.random.choice(open_chats)
            self.note("finish", id, worker.id)
            worker.finish(id)

    async def cancel_chat(self) -> None:
        running = [id for id, task in self.world.chats.items() if not task.done()]
        if running:
            id = self.random.choice(running)
            self.note("cancel", id)
            self.world.chats[id].cancel()

    async def die(self) -> None:
        alive = [one for one in self.world.workers if one.alive]
        if alive:
            worker = self.random.choice(alive)
            self.note("die", worker.id)
            worker.die()

    async def curse(self) -> None:
        """From now on its workers die, and others cannot be started in their places."""
        alive = [one.build.name.partition("@")[0] for one in self.world.workers if one.alive]
        if alive:
            id = self.random.choice(alive)
            self.note("curse", id)
            self.cursed.add(id)
            for worker in [one for one in self.world.workers if one.alive and one.build.name.startswith(id)]:
                worker.die()

    async def lift(self) -> None:
        self.note("lift", *self.cursed)
        self.cursed.clear()

    async def others(self) -> None:
        self.world.others_bytes = int(self.random.choice((0.0, 0.1, 0.3, 0.6)) * self.world.physical_bytes)
        self.note("others", self.world.others_bytes)

    async def think(self) -> None:
        alive = [one for one in self.world.workers if one.alive]
        if alive:
            worker = self.random.choice(alive)
            self.note("think", worker.id)
            worker.think()

    async def prefetch(self) -> None:
        id, other, known = self.random.choice(FETCHED), self.random.random() < 0.3, self.random.random() < 0.7
        digest = ("b2" * 32 if other else "5a" * 32) if known else None
        if not self.fetches_alone:
            return
        self.note("prefetch", id, other, digest)
        self.world.prefetch(id, f"{id}@2" if other else id, digest)

    async def desire(self) -> None:
        newer = self.random.random() < 0.75
        wanted = [one for one in (*FETCHED, "a") if self.random.random() < 0.5]
        if newer:
            self.revision += 1
            self.wanted = set(wanted)
        self.note("desire", self.revision, *wanted)
        self.world.desire(self.revision, *wanted, digest=self.random.choice((None, "5a" * 32)))

    async def withdraw(self) -> None:
        id = self.any_model()
        self.note("withdraw", id)
        self.world.residency.withdraw([id])

    async def retire(self) -> None:
        id = self.random.choice(FETCHED)
        model = self.world.residency.occupancy.models.get(id)
        if model is not None and self.random.random() < 0.3:
            self.note("retire", id, model.digest)
            self.world.residency.retire(model)

    async def time(self) -> None:
        self.note("a second passes")
        await self.world.loop.advance(1)

    async def long_time(self) -> None:
        self.note("21 seconds pass")
        await self.world.loop.advance(21)

    async def minutes(self) -> None:
        seconds = self.random.choice((40, 70, 130))
        self.note(f"{seconds} seconds pass")
        await self.world.loop.advance(seconds)


def check_refused_at_once(chat: "asyncio.Task[Any]", slot: ModelSlot) -> None:
    assert chat.done(), "a request waits for a model that has failed"
    error = chat.exception()
    assert isinstance(error, RequestFailed)
    assert error.failure.code == "slot_state"
    assert error.failure.retry_after_s == math.ceil(slot.standing.retry_in_s or 1)
