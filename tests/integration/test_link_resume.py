"""Answers under way when the socket breaks: over a real WebSocket, with the engine simulated."""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from provider.api.surface import Surface
from provider.link import Link
from provider.protocol import ACK_EVERY, CLOSE_ENDED, Ack, Cancel, Registered
from provider.replay import MAX_FRAMES
from tests.integration.test_link import IDENTITY, Coordinator, linked, residency_in, run

LONG: dict[str, Any] = {"max_tokens": 900, "stream": True}


def text(frames: list[dict[str, Any]]) -> str:
    chunks = [one["data"]["choices"][0] for one in frames if one["type"] == "inference_chunk"]
    return "".join(one["text"] for one in chunks)


async def rest(coordinator: Coordinator, request_id: str) -> list[dict[str, Any]]:
    """To its end, acknowledged as it comes."""
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] not in ("inference_complete", "inference_error"):
        heard += await coordinator.take(request_id, 1)
        if heard[-1]["seq"] % ACK_EVERY == ACK_EVERY - 1:
            await coordinator.say(Ack(request_id=request_id, seq=heard[-1]["seq"]))
    await coordinator.say(Ack(request_id=request_id, seq=heard[-1]["seq"]))
    return heard


async def idle(coordinator: Coordinator) -> None:
    while (await coordinator.hear("heartbeat"))["status"] != "idle":
        pass


def test_a_stream_goes_on_by_its_numbers_and_says_what_it_says_undisturbed(tmp_path: Path) -> None:
    """Lost twice; the second time the coordinator has received less than the provider has sent."""
    undisturbed: list[dict[str, Any]] = []
    heard: list[dict[str, Any]] = []

    async def first(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("alone.1", **LONG)
        undisturbed.extend(await rest(coordinator, "alone.1"))
        await coordinator.ask("j.1", **LONG)
        heard.extend(await coordinator.take("j.1", 70))
        await coordinator.say(Ack(request_id="j.1", seq=63))
        coordinator.lose()

    async def second(coordinator: Coordinator) -> None:
        register = await coordinator.takes_up("j.1", 70)
        (point,) = register["resume"]
        assert point["request_id"] == "j.1"
        assert 70 <= point["next_seq"] <= 64 + MAX_FRAMES
        heard.extend(await coordinator.take("j.1", 30))
        coordinator.lose()

    async def third(coordinator: Coordinator) -> None:
        await coordinator.takes_up("j.1", 100)
        assert (await coordinator.hear("inference_accepted"))["request_id"] == "j.1"
        heard.extend(await rest(coordinator, "j.1"))
        await idle(coordinator)

    run(tmp_path, first, second, third)
    assert [one["seq"] for one in heard] == list(range(len(heard)))
    assert text(heard) == text(undisturbed)
    assert heard[-1]["type"] == "inference_complete"
    assert heard[-1]["usage"] == undisturbed[-1]["usage"]


def test_with_the_link_down_and_the_buffer_full_the_sequence_is_parked_and_its_neighbour_has_the_room(
    tmp_path: Path,
) -> None:
    """One place: what waits behind it enters when it is parked, though both are nobody's to read for the moment."""
    heard: list[dict[str, Any]] = []

    async def first(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", max_tokens=3000, stream=True)
        await coordinator.take("j.1", 1)
        await coordinator.ask("behind.1", max_tokens=3)
        slot: dict[str, Any] = {}
        while not (slot.get("waiting") or slot.get("parked")):
            (slot,) = (await coordinator.hear("heartbeat"))["slots"]
        coordinator.lose()

    async def second(coordinator: Coordinator) -> None:
        """It is not answered before the buffer is full."""
        register = await coordinator.hear("register")
        assert {one["request_id"] for one in register["resume"]} == {"j.1", "behind.1"}
        slot: dict[str, Any] = {}
        while (slot.get("parked"), slot.get("running"), slot.get("waiting")) != (1, 0, 0):
            (slot,) = (await coordinator.hear("heartbeat"))["slots"]
        assert slot["tokens_used"] == 0
        points = [{"request_id": "j.1", "next_seq": 1}, {"request_id": "behind.1", "next_seq": 0}]
        told = {"provider_id": "p", "heartbeat_s": 0.05, "generation": 2, "resume": points}
        await coordinator.say(Registered.model_validate(told))
        heard.extend(await rest(coordinator, "j.1"))
        await idle(coordinator)

    run(tmp_path, first, second, max_concurrent=1)
    assert [one["seq"] for one in heard] == list(range(1, len(heard) + 1))
    notices = {one["kind"]: one["seq"] for one in reversed(heard) if one["type"] == "inference_notice"}
    assert notices["resumed"] > notices["preempted"] >= MAX_FRAMES
    assert heard[-1]["usage"]["completion_tokens"] == 3000
    assert heard[-1]["preempt"]["parks"] >= 1


def test_a_buffer_that_nobody_acknowledges_holds_the_sequence_too(tmp_path: Path) -> None:
    """Back-pressure: the link is up, and the coordinator takes no more."""

    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", max_tokens=3000, stream=True)
        await coordinator.take("j.1", MAX_FRAMES)
        while (await coordinator.hear("heartbeat"))["slots"][0]["parked"] != 1:
            pass
        await coordinator.say(Ack(request_id="j.1", seq=MAX_FRAMES - 1))
        heard = await rest(coordinator, "j.1")
        assert [one["seq"] for one in heard] == list(range(MAX_FRAMES, MAX_FRAMES + len(heard)))

    run(tmp_path, play)


def test_a_whole_answer_arrives_though_it_was_finished_with_the_link_down(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", max_tokens=200)
        await coordinator.hear("inference_accepted")
        coordinator.lose()

    async def second(coordinator: Coordinator) -> None:
        """The answer is lost on its way once more: it is kept until it is acknowledged."""
        await coordinator.takes_up("j.1", 0)
        await coordinator.take("j.1", 1)
        coordinator.lose()

    async def third(coordinator: Coordinator) -> None:
        register = await coordinator.takes_up("j.1", 0)
        assert register["resume"] == [{"request_id": "j.1", "next_seq": 1}]
        (complete,) = await coordinator.take("j.1", 1)
        assert complete["body"]["usage"]["completion_tokens"] == 200
        await coordinator.say(Ack(request_id="j.1", seq=0))
        await coordinator.say(Cancel(request_id="nobody"))
        await idle(coordinator)
        coordinator.lose()

    async def fourth(coordinator: Coordinator) -> None:
        assert (await coordinator.welcome())["resume"] == []

    run(tmp_path, first, second, third, fourth)


@pytest.mark.parametrize("gone", [["j.1"], []])
def test_what_the_coordinator_does_not_want_any_more_is_cancelled(tmp_path: Path, gone: list[str]) -> None:
    """By name, as a coordinator does that has started again; and when it is not mentioned at all."""

    async def first(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", **LONG)
        await coordinator.take("j.1", 3)
        coordinator.lose()

    async def second(coordinator: Coordinator) -> None:
        register = await coordinator.welcome(gone=gone)
        assert [one["request_id"] for one in register["resume"]] == ["j.1"]
        await idle(coordinator)
        await coordinator.ask("next.1")
        assert (await coordinator.answer("next.1"))[-1]["type"] == "inference_complete"

    run(tmp_path, first, second)


def test_a_number_older_than_the_buffer_ends_the_stream_with_a_typed_error(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", max_tokens=3000, stream=True)
        await coordinator.take("j.1", 70)
        await coordinator.say(Ack(request_id="j.1", seq=63))
        await coordinator.take("j.1", MAX_FRAMES - 6)  # more than fits: the acknowledgement has been heard
        coordinator.lose()

    async def second(coordinator: Coordinator) -> None:
        await coordinator.takes_up("j.1", 10)
        (error,) = await coordinator.take("j.1", 1)
        assert (error["type"], error["code"], error["retryable"]) == ("inference_error", "replay_lost", False)
        await idle(coordinator)

    run(tmp_path, first, second)


def test_what_cannot_be_resumed_in_time_is_cancelled(tmp_path: Path) -> None:
    async def first(coordinator: Coordinator) -> None:
        await coordinator.welcome(resume_within_s=0.1)
        await coordinator.ask("j.1", **LONG)
        await coordinator.take("j.1", 3)
        coordinator.lose()

    async def second(coordinator: Coordinator) -> None:
        assert (await coordinator.welcome())["resume"] == []
        await idle(coordinator)

    run(tmp_path, first, second)


def test_a_drain_waits_until_the_last_answer_has_arrived(tmp_path: Path) -> None:
    async def scene() -> None:
        async with residency_in(tmp_path) as residency:

            async def play(coordinator: Coordinator) -> None:
                await coordinator.welcome()
                await coordinator.ask("j.1")
                await coordinator.answer("j.1")
                flushing = asyncio.create_task(links[0].flush())
                await coordinator.hear("heartbeat")
                assert not flushing.done()
                await coordinator.say(Ack(request_id="j.1", seq=0))
                await asyncio.wait_for(flushing, 10)

            links: list[Any] = []
            await linked(residency, play, on_link=links.append)

    asyncio.run(scene())


def test_a_link_that_is_ended_says_that_it_will_not_come_back(tmp_path: Path) -> None:
    async def scene() -> int | None:
        registered, sockets = asyncio.Event(), list[ServerConnection]()

        async def accept(socket: ServerConnection) -> None:
            sockets.append(socket)
            await Coordinator(socket).welcome()
            registered.set()
            await socket.wait_closed()

        async with residency_in(tmp_path) as residency, serve(accept, "127.0.0.1", 0) as server:
            url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            link = Link(url, "dbk_x", IDENTITY, residency, Surface(residency, time.time, Random(1)), Random(1))
            running = asyncio.create_task(link.run(time.monotonic))
            await asyncio.wait_for(registered.wait(), 30)
            running.cancel()
            await asyncio.wait({running})
            return sockets[0].close_code

    assert asyncio.run(scene()) == CLOSE_ENDED
