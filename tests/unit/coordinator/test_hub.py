"""Who is away or lost, and what becomes of their streams: a hub with a clock of the test's own."""

import contextlib
import json

import pytest

from coordinator.config import Timings
from coordinator.fleet import Presence
from coordinator.hub import WATCH_EVERY_S
from coordinator.inbox import Broken
from provider.protocol import (
    CLOSE_ENDED,
    CLOSE_PROTOCOL_ERROR,
    MALFORMED_LIMIT,
    InferenceAccepted,
    InferenceComplete,
)
from provider.wire_limits import MOST_PARTS
from tests.unit.coordinator.hub_world import REQUEST, Wires, World, chunk, heartbeat, play, settle, taken, uuid_of

FLEET = 40


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
            assert world.counted("resumed") == FLEET
            assert all(world.held(number) == {f"j{number}.1"} for number in range(FLEET))
        assert not any(world.held(number) for number in range(FLEET))

    play(scene)


async def lost_amid_an_answer(wires: Wires) -> None:
    wires.say(chunk(0))
    await settle()
    wires.lose()
    await settle()


def test_streams_wait_forty_five_seconds_for_their_provider_and_no_longer() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            await lost_amid_an_answer(wires)
            await world.wait(44)
            assert taken(inbox) == [0]
            assert world.held() == {"j.1"}
            await world.wait(2)
            assert taken(inbox) == [0, Broken.PROVIDER_LOST]
            assert (world.counted("lost"), world.counted("resumed")) == (1, 0)
        assert world.held() == set()
        again = await world.join(resume={"j.1": 9})
        assert again.told("registered")[0]["gone"] == ["j.1"]

    play(scene)


def test_a_provider_that_may_come_back_is_not_forgotten_before_however_long_that_is() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            await lost_amid_an_answer(wires)
            await world.wait(699)
            assert (taken(inbox), uuid_of(0) in world.hub.views) == ([0], True)
            await world.wait(2)
            assert (taken(inbox), uuid_of(0) in world.hub.views) == ([0, Broken.PROVIDER_LOST], False)

    play(scene, timings=Timings(resume_within_s=700))


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
            wires.lose(CLOSE_ENDED)
            await settle()
            assert taken(inbox) == [0, Broken.PROVIDER_LOST]

    play(scene)


def test_a_proxy_that_restarts_and_says_so_loses_nothing() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            wires.say(chunk(0))
            wires.lose(1001)
            await settle()
            assert taken(inbox) == [0]

    play(scene)


def test_what_is_cancelled_while_its_provider_is_away_is_gone_when_it_comes_back() -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease():
            await lost_amid_an_answer(wires)
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


SPOILED = {
    "no number": {"type": "inference_chunk", "request_id": "j.1", "seq": -1, "data": {}},
    "no data": {"type": "inference_chunk", "request_id": "j.1", "seq": 1},
    "a last word without usage": {"type": "inference_complete", "request_id": "j.1", "seq": 1},
    "usage beyond all": {"type": "inference_complete", "request_id": "j.1", "seq": 1, "usage": {"total_tokens": 2**62}},
    "a code of a megabyte": {
        "type": "inference_error", "request_id": "j.1", "seq": 1, "status": 500, "code": "c" * 2**20, "message": "m",
        "retryable": True,
    },
    "not a number": {"type": "inference_chunk", "request_id": "j.1", "seq": 1, "data": {"logprob": float("nan")}},
    "no type": {"request_id": "j.1", "seq": 1},
}  # fmt: skip
CUT = '{"type":"inference_chunk","request_id":"j.1","seq":1,"data":{"choices":['
OVERFLOWING = '{"type":"inference_chunk","request_id":"j.1","seq":1,"data":{"logprob":-1e999}}'


FRAMES = {**{name: json.dumps(one) for name, one in SPOILED.items()}, "cut off": CUT, "overflowing": OVERFLOWING}


@pytest.mark.parametrize("what", FRAMES)
def test_a_frame_that_cannot_be_read_ends_its_own_request_and_no_other(what: str) -> None:
    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease("k.1") as kept:
            with world.lease("j.1") as spoiled:
                for id in ("j.1", "k.1"):
                    wires.say(InferenceAccepted(request_id=id))
                    wires.say(chunk(0, id))
                wires.say(FRAMES[what])
                await settle()
                assert taken(spoiled) == ["InferenceAccepted", 0, "malformed_frame"]
            await settle()
            assert [one["request_id"] for one in wires.told("cancel")] == ["j.1"]
            for _ in range(MALFORMED_LIMIT):
                wires.say(FRAMES[what])  # they were on their way
            wires.say(chunk(1, "k.1"))
            await settle()
            assert taken(kept) == ["InferenceAccepted", 0, 1]
        assert len(wires.told("protocol_error")) == 1 + MALFORMED_LIMIT
        assert wires.closed is None

    play(scene)


def test_a_frame_that_cannot_be_read_says_nothing_of_another_providers_request() -> None:
    async def scene(world: World) -> None:
        await world.join(0)
        bad = await world.join(1)
        with world.lease("j.1", 0) as kept:
            for _ in range(MALFORMED_LIMIT):
                bad.say(CUT)
            await settle()
            assert taken(kept) == []
        assert bad.closed == CLOSE_PROTOCOL_ERROR

    play(scene)


def test_a_frame_that_would_take_a_second_to_read_is_read_of_an_answer_alone() -> None:
    parts = {"list": [0] * 2 * MOST_PARTS}

    async def scene(world: World) -> None:
        wires = await world.join()
        with world.lease() as inbox:
            wires.say(chunk(0).model_copy(update={"data": parts}))
            wires.say(chunk(0, "another.1").model_copy(update={"data": parts}))
            wires.say(json.dumps({"type": "later", "x": "y" * 2**20}))
            await settle()
            assert (taken(inbox), wires.told("protocol_error"), wires.closed) == ([0], [], None)
            for count in range(1, MALFORMED_LIMIT + 1):
                assert wires.closed is None
                wires.say(json.dumps({"type": "heartbeat", "later": parts}))
                await settle()
                assert len(wires.told("protocol_error")) == count
            assert wires.closed == CLOSE_PROTOCOL_ERROR
        newcomer = await world.dial()
        for _ in range(MALFORMED_LIMIT):
            newcomer.say(json.dumps({"type": "register", "later": parts}))
        await settle()
        assert newcomer.closed == CLOSE_PROTOCOL_ERROR

    play(scene)
