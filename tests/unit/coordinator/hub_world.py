"""A hub over sockets in memory, with a clock of the test's own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from coordinator import fleet
from coordinator.config import Bounds, Timings
from coordinator.fleet import Hold, Presence
from coordinator.hub import WATCH_EVERY_S, Hub
from coordinator.inbox import Inbox
from provider.protocol import Heartbeat, InferenceChunk, ResumePoint, Wire, encode
from tests.unit.coordinator.views import MODEL, beat, register, slot

TIMINGS = Timings()
REQUEST = '{"type":"inference_request"}'


def uuid_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


class Wires:
    """A socket in memory. `heard`: what the hub has said."""

    def __init__(self) -> None:
        self._coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.heard: list[dict[str, Any]] = []
        self.closed: int | None = None

    async def receive(self) -> dict[str, Any]:
        return await self._coming.get()

    async def send_text(self, data: str) -> None:
        self.heard.append(json.loads(data))

    async def close(self, code: int, reason: str | None = None) -> None:
        self.closed = code
        self.lose(code)

    def say(self, message: Wire | str | bytes) -> None:
        frame = encode(message) if isinstance(message, Wire) else message
        kind = "bytes" if isinstance(frame, bytes) else "text"
        self._coming.put_nowait({"type": "websocket.receive", kind: frame})

    def lose(self, code: int = 1006) -> None:
        self._coming.put_nowait({"type": "websocket.disconnect", "code": code})

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.heard if one["type"] == kind]


class World:
    """A hub, its clock, and providers by number."""

    def __init__(self, bounds: Bounds | None = None, timings: Timings = TIMINGS) -> None:
        self.now = 1000.0
        self.registered: list[str] = []
        """The providers that were let in, each time."""
        self.hub = Hub(timings, lambda: self.now, lambda seen: self.registered.append(seen.provider_id), bounds)
        self.serving: list[asyncio.Task[None]] = []

    async def join(
        self,
        number: int = 0,
        resume: dict[str, int] | None = None,
        model: str = MODEL,
        owner: int = 0,
        models: tuple[str, ...] = (),
    ) -> Wires:
        """`resume`: what it could go on with, and from which number on it would. `models` rather than the one."""
        wires = await self.dial(owner)
        points = [ResumePoint(request_id=id, next_seq=seq) for id, seq in (resume or {}).items()]
        wires.say(register(uuid_of(number), models or (model,)).model_copy(update={"resume": points}))
        wires.say(heartbeat())
        await settle()
        return wires

    async def dial(self, owner: int = 0) -> Wires:
        """A socket that has said nothing yet, and came by that token."""
        wires = Wires()
        self.serving.append(asyncio.create_task(self.hub.serve(wires, owner)))
        return wires

    async def wait(self, seconds: float) -> None:
        """The watch looks every second, as it does when the loop is well."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + WATCH_EVERY_S)
            self.hub.look()
            await settle()

    def presence(self, number: int = 0) -> Presence:
        return fleet.presence(self.hub.views[uuid_of(number)], self.now, TIMINGS)

    def held(self, number: int = 0) -> set[str]:
        view = self.hub.views[uuid_of(number)]
        return {*view.holds, *view.counted}

    def counted(self, outcome: str) -> float:
        """Of the answers whose provider lost its connection."""
        name = "darkbloom_stream_resumptions_total"
        return self.hub.metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0.0

    def lease(self, request_id: str = "j.1", number: int = 0) -> "contextlib.AbstractContextManager[Inbox]":
        return self.hub.lease(uuid_of(number), Hold(MODEL, 10), request_id, REQUEST)


def heartbeat(seq: int = 1) -> Heartbeat:
    return beat(seq, slots=(slot(),))


async def settle() -> None:
    """Everything that can happen now has happened."""
    for _ in range(12):
        await asyncio.sleep(0)


@asynccontextmanager
async def world(bounds: Bounds | None = None, timings: Timings = TIMINGS) -> AsyncIterator[World]:
    made = World(bounds, timings)
    try:
        yield made
    finally:
        for task in made.serving:
            task.cancel()
        await asyncio.gather(*made.serving, return_exceptions=True)


def play(scene: Callable[[World], Awaitable[None]], bounds: Bounds | None = None, timings: Timings = TIMINGS) -> None:
    async def run() -> None:
        async with world(bounds, timings) as made:
            await scene(made)

    asyncio.run(run())


def chunk(seq: int, request_id: str = "j.1") -> InferenceChunk:
    return InferenceChunk(request_id=request_id, seq=seq, data={"n": seq})


def taken(inbox: Inbox) -> list[int | str]:
    """What has come so far."""
    frames = [frame for frame, _ in inbox._frames]
    said: list[int | str] = [one.seq if isinstance(one, InferenceChunk) else type(one).__name__ for one in frames]
    return said if inbox._broken is None else [*said, inbox._broken.value]
