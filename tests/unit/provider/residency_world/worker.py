"""A worker without a process: its memory comes with a load and goes when its exit has been reaped."""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from provider.generation import Delta, Entered, Event, Finished
from provider.pipe import (
    Cancel,
    ClearCache,
    Command,
    EngineState,
    ExactReport,
    Grant,
    Granted,
    Loaded,
    LoadSpec,
    Report,
    Submit,
)
from provider.runner import OnReport
from tests.unit.provider.residency_world.builds import Build
from tests.unit.provider.residency_world.gates import Gate, Gates


class Host(Protocol):
    """The machine it runs on."""

    gates: Gates
    workers: "list[ScriptedWorker]"

    def build_of(self, directory: str) -> Build: ...


class ScriptedWorker:
    """Implements provider.runner.Runner. Commands are taken in their order, one each time its gate is opened.

    `chats`: by request, the KV bytes it will have taken when it ends; `pool_bytes`: what it may take in all.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._inbox: deque[Command] = deque()
        self._next: Gate | None = None
        self._epoch = 0
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.chats: dict[str, int] = {}
        self.pool_bytes = 0
        self.reserve_bytes = 0
        self.staged_bytes = 0
        self.cache_bytes = 0
        self.loaded = False
        self.reaped = False

    @property
    def pid(self) -> int | None:
        return None

    @property
    def id(self) -> str:
        return self.build.name

    @property
    def alive(self) -> bool:
        return self.loaded and not self._ended.done()

    @property
    def kv_bytes(self) -> int:
        return min(self.pool_bytes, sum(self.chats.values()))

    @property
    def held_bytes(self) -> int:
        """All it takes of the machine."""
        if self.reaped:
            return 0
        inside = self.build.weight_bytes + self.build.baseline_bytes if self.loaded else self.staged_bytes
        return inside + self.kv_bytes + self.cache_bytes

    # Runner

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        self.build, self.spec = self._host.build_of(Path(spec.directory).name), spec
        self.pool_bytes, self.reserve_bytes = spec.kv_pool_bytes or 0, spec.activation_reserve_bytes or 0
        self._on_report = on_report
        self._host.workers.append(self)
        self.staged_bytes = self.build.weight_bytes // 2
        try:
            await self._host.gates.wait(f"start:{self.id}")
        except BaseException:
            self._leave("it could not start")
            raise
        self.loaded = True
        return self._described()

    def send(self, command: Command) -> None:
        if self.alive:
            self._inbox.append(command)
            self._hold()

    async def wait_ended(self) -> str:
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float = 5.0) -> None:
        if not self.reaped and self.staged_bytes:
            await self._host.gates.wait(f"stop:{self.id}")
            self._leave("stopped")

    def kill(self) -> None:
        self.die("killed")

    # What the test does to it

    def die(self, how: str = "signal 9") -> None:
        """Its memory is back once it has been reaped."""
        if not self._ended.done():
            self._ended.set_result(how)
        self._host.gates.forget(self._next)
        self._inbox.clear()

    def finish(self, request_id: str) -> None:
        self.chats.pop(request_id)
        self._say([Delta(request_id, [1], "."), Finished(request_id, "stop", 1, 1)])

    def think(self) -> None:
        """Something is left in its cache."""
        self.cache_bytes += self.build.weight_bytes // 8
        self._say([])

    # Its own

    def _leave(self, how: str) -> None:
        self.die(how)
        self.reaped = True
        if self in self._host.workers:
            self._host.workers.remove(self)

    def _hold(self) -> None:
        if self._inbox and self._next is None:
            name = type(self._inbox[0]).__name__.lower()
            self._next = self._host.gates.hold(f"{name}:{self.id}", self._take)

    def _take(self, _: Any) -> None:
        self._next = None
        command = self._inbox.popleft()
        match command:
            case Grant():
                self._grant(command)
            case ClearCache():
                self.cache_bytes = 0
                self._say([])
            case Submit(request):
                self.chats[request.request_id] = min(self.pool_bytes, request.max_tokens or 0)
                self._say([Entered(request.request_id)])
            case Cancel(request_id):
                self.chats.pop(request_id, None)
                self._say([])
        self._hold()

    def _grant(self, told: Grant) -> None:
        if told.epoch <= self._epoch:
            return
        self._epoch = told.epoch
        accepted = max(self.chats.values(), default=0) <= told.kv_pool_bytes
        if accepted:
            self.pool_bytes, self.reserve_bytes = told.kv_pool_bytes, told.activation_reserve_bytes
        facts = self._described()
        self._on_report(Granted(epoch=told.epoch, accepted=accepted, n_ctx=facts.n_ctx, pool_tokens=facts.pool_tokens))
        self._say([])

    def _say(self, events: list[Event]) -> None:
        state = EngineState(
            running=len(self.chats),
            active_bytes=self.build.weight_bytes + self.kv_bytes,
            cache_bytes=self.cache_bytes,
        )
        self._on_report(Report(events, state=state, at=0.0))

    def _described(self) -> Loaded:
        per_token = self.build.kv_kib * 2**10
        return Loaded(
            n_ctx=min(self.build.context, self.pool_bytes // per_token),
            pool_tokens=self.pool_bytes // per_token,
            vocab_size=64,
            weight_bytes=self.build.weight_bytes,
            kv_bytes_per_token=per_token,
            state_bytes=0,
            device="none",
            load_s=0.0,
            active_bytes=self.build.weight_bytes,
            baseline_bytes=self.build.baseline_bytes,
            exact=ExactReport() if self.spec.exact == "off" else ExactReport(state="on", lane_rows=4),
        )
