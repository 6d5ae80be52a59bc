"""A link of the world's provider over a socket that is none."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random
from typing import Any

from provider.api.surface import Complete, Item
from provider.generation import GenerationRequest, Sampling
from provider.link import Link
from provider.protocol import Hardware, InferenceRequest, Registered, Wire, encode
from provider.session import Identity
from provider.system_memory import MemoryKind
from provider.thermal import Thermal
from tests.unit.provider.residency_world.world import World

NEVER_S = 3600
"""Between two beats: none comes but for a reason."""
IDENTITY = Identity("p", "name", "0.9.0", "sim", Hardware(chip="none", memory_bytes=1, memory_kind="host", cores=1))


class HeldSocket:
    """`hold`: frames of that type wait at a gate."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inbox: asyncio.Queue[str] = asyncio.Queue()
        self.heard: list[dict[str, Any]] = []
        self.hold: str | None = None

    async def send(self, message: str, /) -> None:
        frame = json.loads(message)
        if frame["type"] == self.hold:
            await self._world.gates.wait(f"send:{frame['type']}")
        self.heard.append(frame)

    async def recv(self) -> str:
        return await self._inbox.get()

    async def say(self, message: Wire) -> None:
        self._inbox.put_nowait(encode(message))
        await self._world.loop.settle()

    def of(self, type: str) -> list[dict[str, Any]]:
        return [one for one in self.heard if one["type"] == type]


class Answer:
    """What provider.api.surface would make of a request, without words."""

    def __init__(self, world: World, request_id: str, model: str) -> None:
        self._world, self._model = world, model
        self._request = GenerationRequest(request_id=request_id, prompt=[1], max_tokens=1, sampling=Sampling())

    async def items(self) -> AsyncGenerator[Item]:
        async with aclosing(self._world.residency.generate(self._model, self._request)) as events:
            async for _ in events:
                pass
        yield Complete({"object": "answer"}, {}, 0, 0)


class ScriptedSurface:
    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self, endpoint: str, body: dict[str, Any], request_id: str) -> Answer:
        return Answer(self._world, request_id, body["model"])


class Linked:
    """The link, its socket, and the coordinator's part of the conversation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.socket = HeldSocket(world)
        surface: Any = ScriptedSurface(world)
        self.link = Link("ws://x", "t", IDENTITY, world.residency, surface, Random(1), world.operations, self._feel)

    async def _feel(self, kind: MemoryKind) -> Thermal:
        return "nominal"

    async def begin(self) -> None:
        self.running = await self._world.begin(self.link.converse(self.socket))

    async def welcome(self) -> None:
        await self.socket.say(Registered(provider_id="p", heartbeat_s=NEVER_S, generation=1))
        await self._world.open_all(but=("start", "send"))

    async def ask(self, request_id: str, model: str) -> None:
        body = {"model": model}
        await self.socket.say(
            InferenceRequest(request_id=request_id, endpoint="/v1/x", body=body, deadline_ms=1_000_000_000)
        )
