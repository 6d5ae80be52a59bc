"""A scripted provider whose socket breaks in the middle of an answer, before a real coordinator and a real client."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx

from coordinator.config import Timings
from provider.protocol import Ack, Cancel, InferenceRequest, Registered
from tests.integration.coordinator_harness import (
    Provider,
    Running,
    chat,
    coordinator,
    counts,
    events,
    postgres,
    provider,
    slot,
    text_of,
    whole,
    with_timings,
)

__all__ = ["postgres"]

SOON = with_timings(resume_within_s=20, failover_after_s=0.2)


async def begins(played: Provider, request: InferenceRequest) -> None:
    """Accepts, says two words and loses its line."""
    await played.accept(request)
    await played.chunk(request, 0, "one ")
    await played.chunk(request, 1, "two ")
    played.socket.transport.abort()


async def only_accepts(played: Provider, request: InferenceRequest) -> None:
    await played.accept(request)
    played.socket.transport.abort()


async def nothing(played: Provider, request: InferenceRequest) -> None:
    pass


def resumed(welcome: Registered) -> dict[str, int]:
    return {point.request_id: point.next_seq for point in welcome.resume}


async def held(running: Running) -> int:
    async with running.client() as client:
        return int((await client.get("/v1/fleet/p1")).json()["requests_held"])


class Scene:
    """A client's request at a provider that has just lost its line."""

    def __init__(self, running: Running, stack: AsyncExitStack, script: Any, stream: bool) -> None:
        self.running = running
        self._stack = stack
        self._script = script
        self._stream = stream
        self.request: InferenceRequest | None = None

    async def start(self) -> "Scene":
        self.client = await self._stack.enter_async_context(self.running.client())
        first = await self._stack.enter_async_context(provider(self.running, self._script))
        self.answer = asyncio.create_task(self.client.post("/v1/chat/completions", json=chat(self._stream)))
        self.request = await first.hears(InferenceRequest)
        await asyncio.wait_for(first.socket.wait_closed(), 5)
        return self

    async def back(self, next_seq: int) -> Provider:
        """The provider again, with what it could go on with."""
        assert self.request is not None
        resume = [{"request_id": self.request.request_id, "next_seq": next_seq}]
        return await self._stack.enter_async_context(provider(self.running, nothing, resume=resume))

    async def got(self) -> httpx.Response:
        return await asyncio.wait_for(self.answer, 10)


def test_a_stream_goes_on_over_another_socket_and_is_billed_once(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, begins, stream=True).start()
            assert broken.request is not None
            assert await held(running) == 1
            again = await broken.back(3)
            assert resumed(again.registered) == {broken.request.request_id: 2}
            await again.chunk(broken.request, 1, "two ")  # once too often
            await again.chunk(broken.request, 2, "three ")
            await again.chunk(broken.request, 3, "four")
            await again.complete(broken.request, 4, tokens=4)
            stream = events((await broken.got()).text)
            assert (text_of(stream), stream[-1]) == ("one two three four", "data: [DONE]")
            assert await again.hears(Ack) == Ack(request_id=broken.request.request_id, seq=4)
            assert await running.usage() == [("completed", None, 1, 4, 7, 4)]
            assert await held(running) == 0

    asyncio.run(scene())


def test_a_whole_answer_comes_over_another_socket(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, only_accepts, stream=False).start()
            assert broken.request is not None
            await asyncio.sleep(0.6)  # there is no other provider: it is waited for
            again = await broken.back(1)
            assert resumed(again.registered) == {broken.request.request_id: 0}
            await again.complete(broken.request, 0, whole("all of it"))
            assert (await broken.got()).json()["choices"][0]["message"]["content"] == "all of it"
            assert (await running.usage())[0][:3] == ("completed", None, 1)

    asyncio.run(scene())


def test_what_has_said_nothing_yet_is_taken_elsewhere_and_gone_when_its_provider_comes_back(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, only_accepts, stream=True).start()
            assert broken.request is not None
            await stack.enter_async_context(provider(running, counts, "other"))
            stream = events((await broken.got()).text)
            assert (text_of(stream), stream[-1]) == ("one two three", "data: [DONE]")
            assert (await running.usage())[0][:3] == ("completed", None, 2)
            assert (await broken.back(7)).registered.gone == [broken.request.request_id]

    asyncio.run(scene())


def test_a_provider_that_comes_back_without_its_stream_has_lost_it(postgres: str) -> None:
    """It has started again. What the client has is billed; the error is typed."""

    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, begins, stream=True).start()
            await stack.enter_async_context(provider(running, nothing))
            stream = events((await broken.got()).text)
            assert text_of(stream[:-2]) == "one two "
            assert json.loads(stream[-2][6:])["error"]["code"] == "provider_lost"
            assert stream[-1] == "data: [DONE]"
            assert await running.usage() == [("failed", "provider_lost", 1, 2, None, 2)]

    asyncio.run(scene())


def test_another_provider_cannot_take_a_stream_over(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, begins, stream=True).start()
            assert broken.request is not None
            resume = [{"request_id": broken.request.request_id, "next_seq": 2}]
            thief = await stack.enter_async_context(provider(running, nothing, "thief", resume=resume))
            assert (resumed(thief.registered), thief.registered.gone) == ({}, [broken.request.request_id])
            await thief.chunk(broken.request, 2, "stolen")
            again = await broken.back(2)
            await again.complete(broken.request, 2)
            assert text_of(events((await broken.got()).text)) == "one two "

    asyncio.run(scene())


def test_a_client_that_leaves_while_its_provider_is_away_frees_everything(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, begins, stream=True).start()
            assert broken.request is not None
            broken.answer.cancel()
            await asyncio.wait({broken.answer})
            for _ in range(100):
                if not await held(running):
                    break
                await asyncio.sleep(0.05)
            assert await held(running) == 0
            assert (await broken.back(5)).registered.gone == [broken.request.request_id]
            assert (await running.usage())[0][0] == "cancelled"

    asyncio.run(scene())


def test_a_coordinator_that_leaves_cancels_its_requests_before_it_closes(postgres: str) -> None:
    async def endless(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.chunk(request, 0, "one ")

    async def scene() -> None:
        timings = Timings(drain_s=0.2)
        async with (
            coordinator(postgres, timings) as running,
            provider(running, endless) as played,
            running.client() as client,
        ):
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
            request = await played.hears(InferenceRequest)
            running.stop.ask()
            assert (await played.hears(Cancel)).request_id == request.request_id
            assert "draining" in (await asking).text

    asyncio.run(scene())


def test_the_places_of_a_provider_that_is_away_are_still_taken_when_it_comes_back(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, SOON) as running, AsyncExitStack() as stack:
            broken = await Scene(running, stack, begins, stream=True).start()
            assert broken.request is not None
            again = await broken.back(2)
            await again.beat(slots=[slot(running=1)])
            await asyncio.sleep(0.1)
            assert await held(running) <= 1
            await again.complete(broken.request, 2)
            await broken.got()
            await asyncio.sleep(0.1)
            assert await held(running) == 0

    asyncio.run(scene())
