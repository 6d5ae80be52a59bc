"""The hub over sockets in memory, with a clock of the test's own: who is away or lost, and what becomes of streams."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from coordinator import fleet
from coordinator.config import Timings
from coordinator.fleet import Hold, Presence
from coordinator.hub import WATCH_EVERY_S, Hub
from coordinator.inbox import Broken, Inbox
from provider.protocol import (
    Heartbeat,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    ResumePoint,
    Wire,
    encode,
)
from tests.unit.coordinator.views import MODEL, beat, register, slot

TIMINGS = Timings()
FLEET = 40
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

    def say(self, message: Wire) -> None:
        self._coming.put_nowait({"type": "websocket.receive", "text": encode(message)})

    def lose(self, code: int = 1006) -> None:
        self._coming.put_nowait({"type": "websocket.disconnect", "code": code})

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.heard if one["type"] == kind]


class World:
    """A hub, its clock, and providers by number."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.hub = Hub(TIMINGS, lambda: self.now, lambda _: None)
        self.serving: list[asyncio.Task[None]] = []

    async def join(self, number: int = 0, resume: dict[str, int] | None = None, model: str = MODEL) -> Wires:
        """`resume`: what it could go on with, and from which number on it would."""
        wires = Wires()
        self.serving.append(asyncio.create_task(self.hub.serve(wires)))
        points = [ResumePoint(request_id=id, next_seq=seq) for id, seq in (resume or {}).items()]
        wires.say(register(uuid_of(number), (model,)).model_copy(update={"resume": points}))
        wires.say(heartbeat())
        await settle()
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

    def lease(self, request_id: str = "j.1", number: int = 0) -> "contextlib.AbstractContextManager[Inbox]":
        return self.hub.lease(uuid_of(number), Hold(MODEL, 10), request_id, REQUEST)


def heartbeat(seq: int = 1) -> Heartbeat:
    return beat(seq, slots=(slot(),))


async def settle() -> None:
    """Everything that can happen now has happened."""
    for _ in range(12):
        await asyncio.sleep(0)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        for task in made.serving:
            task.cancel()
        await asyncio.gather(*made.serving, return_exceptions=True)


def play(scene: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world() as made:
            await scene(made)

    asyncio.run(run())


def chunk(seq: int, request_id: str = "j.1") -> InferenceChunk:
    return InferenceChunk(request_id=request_id, seq=seq, data={"n": seq})


def taken(inbox: Inbox) -> list[int | str]:
    """What has come so far."""
    frames = [frame for frame, _ in inbox._frames]
    said: list[int | str] = [one.seq if isinstance(one, InferenceChunk) else type(one).__name__ for one in frames]
    return said if inbox._broken is None else [*said, inbox._broken.value]


def test_a_flap_of_the_whole_fleets_heartbeats_for_twenty_seconds_evicts_nobody_and_ends_nothing() -> None:
    async def scene(world: World) -> None:
        sockets = [await world.join(number) for number in range(FLEET)]
        with contextlib.ExitStack() as leases:
            inboxes = [leases.enter_context(world.lease(f"j{n}.1", n)) for n in range(FLEET)]
            for number, wires in enumerate(sockets):
                wires.say(chunk(0, f"j{number}.1"))
            await world.wait(20)
            assert {world.presence(number) for number in range(FLEET)} == {Presence.SUSPECT}
            assert [wires.closed for wires in sockets] == [None] * FLEET
            for wires in sockets:
                wires.say(heartbeat(2))
            await settle()
            assert {world.presence(number) for number in range(FLEET)} == {Presence.ALIVE}
            assert [taken(inbox) for inbox in inboxes] == [[0]] * FLEET
            assert all(world.hub.views[uuid_of(number)].generation == number + 1 for number in range(FLEET))
            assert not any(wires.told("load_model") + wires.told("unload_model") for wires in sockets)

    play(scene)


def test_a_fleet_whose_sockets_all_break_for_twenty_seconds_comes_back_with_every_stream() -> None:
    async def scene(world: World) -> None:
        sockets = [await world.join(number) for number in range(FLEET)]
        with contextlib.ExitStack() as leases:
            inboxes = [leases.enter_context(world.lease(f"j{n}.1", n)) for n in range(FLEET)]
            for number, wires in enumerate(sockets):
                wires.say(chunk(0, f"j{number}.1"))
                wires.lose()
            await world.wait(20)
            assert {world.presence(number) for number in range(FLEET)} == {Presence.DISCONNECTED}
            for number in range(FLEET):
                again = await world.join(number, {f"j{number}.1": 3})
                (welcome,) = again.told("registered")
                assert welcome["resume"] == [{"request_id": f"j{number}.1", "next_seq": 1}]
                again.say(chunk(1, f"j{number}.1"))
            await settle()
            assert [taken(inbox) for inbox in inboxes] == [[0, 1]] * FLEET
            assert all(world.held(number) == {f"j{number}.1"} for number in range(FLEET))
        assert not any(world.held(number) for number in range(FLEET))

    play(scene)


def test_streams_wait_forty_five_seconds_for_their_provider_and_no_longer() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            wires.say(chunk(0))
            await settle()
            wires.lose()
            await settle()
            await world.wait(44)
            assert taken(inbox) == [0]
            assert world.held() == {"j.1"}
            await world.wait(2)
            assert taken(inbox) == [0, Broken.PROVIDER_LOST]
        assert world.held() == set()
        again = await world.join(resume={"j.1": 9})
        assert again.told("registered")[0]["gone"] == ["j.1"]

    play(scene)


def test_what_nobody_has_seen_a_chunk_of_goes_elsewhere_soon_if_there_is_an_elsewhere() -> None:
    async def scene(world: World) -> None:
        wires = await world.join(0)
        with world.lease("new.1") as new, world.lease("begun.1") as begun:
            wires.say(InferenceAccepted(request_id="new.1"))
            wires.say(chunk(0, "begun.1"))
            await settle()
            wires.lose()
            await settle()
            await world.wait(20)
            assert (taken(new), taken(begun)) == (["InferenceAccepted"], [0])
            await world.join(1, model="another")
            await world.wait(2)
            assert (taken(new), taken(begun)) == (["InferenceAccepted"], [0])
            await world.join(2)
            await world.wait(2)
            assert (taken(new), taken(begun)) == (["InferenceAccepted", Broken.PROVIDER_LOST], [0])

    play(scene)


def test_a_silent_socket_is_lost_after_forty_five_seconds_and_so_are_its_streams() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            wires.say(chunk(0))
            await world.wait(44)
            assert wires.closed is None
            await world.wait(2)
            assert (wires.closed, world.presence()) == (4408, Presence.LOST)
            assert taken(inbox) == [0, Broken.PROVIDER_LOST]
        await world.wait(500)
        assert uuid_of(0) in world.hub.views
        await world.wait(110)
        assert uuid_of(0) not in world.hub.views

    play(scene)


def test_a_coordinator_that_was_itself_asleep_reads_what_was_said_before_it_judges() -> None:
    """A suspended machine, or a clock that jumps: the providers have beaten all the while."""

    async def scene(world: World) -> None:
        sockets = [await world.join(number) for number in range(FLEET)]
        world.now += 3600
        for number, wires in enumerate(sockets):
            wires.say(heartbeat(2 + number))
        world.hub.look()
        await settle()
        world.now += WATCH_EVERY_S
        world.hub.look()
        await settle()
        assert {world.presence(number) for number in range(FLEET)} == {Presence.ALIVE}
        assert [wires.closed for wires in sockets] == [None] * FLEET

    play(scene)


def test_the_newest_connection_wins_and_the_streams_move_to_it() -> None:
    """The old socket is half open: the provider has given it up, and what it still says counts no more."""

    async def scene(world: World) -> None:
        older = await world.join()
        with world.lease() as inbox:
            older.say(chunk(0))
            await settle()
            newer = await world.join(resume={"j.1": 2})
            older.say(chunk(1))
            await settle()
            assert older.closed == 4409
            assert taken(inbox) == [0]
            newer.say(chunk(1))
            newer.say(InferenceComplete(request_id="j.1", seq=2, usage={}))
            await settle()
            assert taken(inbox) == [0, 1, "InferenceComplete"]
            assert newer.told("ack") == [{"type": "ack", "request_id": "j.1", "seq": 2}]
        assert newer.told("cancel") == []

    play(scene)


def test_a_request_that_never_reached_its_provider_is_sent_to_it_again() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            wires.lose()
            await settle()
            again = await world.join()
            assert again.told("inference_request") == [json.loads(REQUEST)]
            assert [one["type"] for one in again.heard][:2] == ["registered", "inference_request"]
            again.say(InferenceAccepted(request_id="j.1"))
            await settle()
            assert taken(inbox) == ["InferenceAccepted"]
            again.lose()
            await settle()
            third = await world.join()
            assert third.told("inference_request") == []
            assert taken(inbox) == ["InferenceAccepted", Broken.PROVIDER_LOST]

    play(scene)


def test_a_provider_that_goes_away_in_order_does_not_come_back_with_its_streams() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            wires.say(chunk(0))
            wires.lose(1001)
            await settle()
            assert taken(inbox) == [0, Broken.PROVIDER_LOST]

    play(scene)


def test_what_is_cancelled_while_its_provider_is_away_is_gone_when_it_comes_back() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease():
            wires.say(chunk(0))
            await settle()
            wires.lose()
            await settle()
        assert world.held() == set()
        again = await world.join(resume={"j.1": 5})
        assert again.told("registered")[0]["gone"] == ["j.1"]

    play(scene)


def test_a_coordinator_that_leaves_cancels_what_is_under_way() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            await world.hub.close_all("the end")
            assert taken(inbox) == [Broken.STOPPING]
        assert wires.told("cancel") == [{"type": "cancel", "request_id": "j.1"}]
        assert wires.closed == 1001

    play(scene)
