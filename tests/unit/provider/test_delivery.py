"""One answer's way out: who waits for room and when, what the last frame may do, and how answers share a socket."""

import asyncio
from typing import Any

import pytest

from coordinator.endings import failed
from provider.api.wire import internal_error, unavailable
from provider.delivery import Delivery
from provider.errors import RequestFailed
from provider.outbox import MAX_MESSAGES, Outbox
from provider.protocol import (
    MAX_FRAME_BYTES,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    Routability,
    Wire,
    parse_from_provider,
)
from provider.replay import Replay

LIMIT = 8


def complete(seq: int) -> InferenceComplete:
    return InferenceComplete(request_id="j.1", seq=seq, usage={})


class Out:
    """A delivery of few frames, and how often its chat was held and let go on."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.holds: list[bool] = []
        self.ready = 0
        self.delivery = Delivery("j.1", self._note, Replay(max_frames=limit))

    def _note(self, _: Delivery) -> None:
        self.ready += 1

    async def say(self, **data: Any) -> None:
        message = InferenceChunk(request_id="j.1", seq=self.delivery.next_seq, data=data)
        await self.delivery.say(message, self.holds.append)

    def send(self) -> list[int]:
        """All that is pending; the numbers."""
        numbers = []
        while self.delivery.pending:
            frame = self.delivery.take()
            assert frame is not None
            numbers.append(getattr(parse_from_provider(frame), "seq", -1))
        return numbers


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_full_buffer_holds_the_chat_until_half_of_it_is_acknowledged() -> None:
    async def scene() -> None:
        out = Out()
        for _ in range(LIMIT):
            await out.say()
        assert out.holds == []
        waiting = asyncio.create_task(out.say())
        await turn()
        assert (out.holds, waiting.done()) == ([True], False)
        out.send()
        out.delivery.acknowledge(LIMIT // 2 - 2)
        await turn()
        assert not waiting.done(), "to go on for one frame is not worth a restore"
        out.delivery.acknowledge(LIMIT // 2 - 1)
        await asyncio.wait_for(waiting, 5)
        assert out.holds == [True, False]
        assert out.send() == [LIMIT]

    asyncio.run(scene())


def test_whoever_is_cancelled_while_it_waits_lets_its_chat_go() -> None:
    async def scene() -> None:
        out = Out()
        for _ in range(LIMIT):
            await out.say()
        waiting = asyncio.create_task(out.say())
        await turn()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert out.holds == [True, False]

    asyncio.run(scene())


def test_the_last_frame_fits_into_a_full_buffer_and_is_the_last() -> None:
    async def scene() -> None:
        out = Out()
        for _ in range(LIMIT):
            await out.say()
        out.delivery.end(complete(LIMIT))
        out.delivery.fail(internal_error("too late"))
        assert out.send() == list(range(LIMIT + 1))
        assert not out.delivery.arrived
        out.delivery.acknowledge(LIMIT)
        assert out.delivery.arrived

    asyncio.run(scene())


def test_acceptance_is_said_again_on_every_connection_and_counts_for_no_number() -> None:
    out = Out()
    out.delivery.accept()
    out.delivery.end(complete(0))
    assert out.send() == [-1, 0]
    assert out.delivery.resume(0)
    assert out.send() == [-1, 0]


def test_what_cannot_be_gone_on_with_ends_with_an_error_and_nothing_else() -> None:
    async def scene() -> None:
        out = Out()
        out.delivery.accept()
        for _ in range(4):
            await out.say()
        out.send()
        out.delivery.acknowledge(2)
        assert not out.delivery.resume(1)
        out.delivery.give_up()
        frame = out.delivery.take()
        assert frame is not None
        error = parse_from_provider(frame)
        assert isinstance(error, InferenceError)
        assert (error.code, error.retryable, out.delivery.take()) == ("replay_lost", False, None)

    asyncio.run(scene())


def test_what_no_frame_could_carry_is_an_error_instead_of_a_closed_socket() -> None:
    async def scene() -> None:
        out = Out()
        with pytest.raises(RequestFailed) as refused:
            await out.say(text="x" * MAX_FRAME_BYTES)
        assert refused.value.failure.code == "answer_too_large"
        with pytest.raises(RequestFailed):
            out.delivery.end(
                InferenceComplete(request_id="j.1", seq=0, body={"text": "ä" * (MAX_FRAME_BYTES // 2)}, usage={})
            )
        assert not out.delivery.pending

    asyncio.run(scene())


def test_answers_take_turns_at_the_socket_a_frame_each() -> None:
    async def scene() -> list[str]:
        outbox = Outbox()
        both = [Delivery(id, outbox.ready) for id in ("a", "b")]
        for one in both:
            for seq in range(3):
                message = InferenceChunk(request_id=one.request_id, seq=seq, data={})
                await one.say(message, lambda _: None)
        frames = [parse_from_provider(await outbox.next_frame()) for _ in range(6)]
        return [f"{one.request_id}{one.seq}" for one in frames if isinstance(one, InferenceChunk)]

    assert asyncio.run(scene()) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_what_a_silenced_answer_had_to_say_is_passed_over() -> None:
    async def scene() -> None:
        outbox = Outbox()
        one, other = (Delivery(id, outbox.ready) for id in ("a", "b"))
        for each in (one, other):
            each.end(InferenceComplete(request_id=each.request_id, seq=0, usage={}))
        one.silence()
        assert '"b"' in await outbox.next_frame()

    asyncio.run(scene())


def test_messages_for_a_socket_that_takes_nothing_are_bounded() -> None:
    outbox = Outbox()
    message: Wire = Routability(models={})
    assert [outbox.say(message) for _ in range(MAX_MESSAGES + 2)] == [True] * MAX_MESSAGES + [False] * 2


def test_a_failure_tells_the_coordinator_when_to_try_again() -> None:
    out = Out()
    out.delivery.fail(unavailable("not now", "slot_state", 60))
    frame = out.delivery.take()
    assert frame is not None
    told = parse_from_provider(frame)
    assert isinstance(told, InferenceError)
    assert failed(told) == unavailable("not now", "slot_state", 60), "as it reads there"
