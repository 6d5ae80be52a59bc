"""The two ends of a resumed answer against each other: what a provider keeps, and what a coordinator has received.

No sockets: a connection is two lists of frames in flight, which a loss cuts wherever it likes.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.connection import Connection
from coordinator.inbox import Broken, Inbox
from coordinator.link import Link
from coordinator.metrics import Metrics
from coordinator.streams import Stream, Streams
from provider.delivery import Delivery
from provider.protocol import (
    ACK_BYTES,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    ResumePoint,
    parse_from_provider,
)
from provider.replay import Replay
from tests.soak import examples

ID = "job.1"
LIMIT = 100
METRICS = Metrics(dict)


class NoSocket:
    async def receive(self) -> dict[str, object]:
        raise AssertionError

    async def send_text(self, data: str) -> None:
        raise AssertionError

    async def close(self, code: int, reason: str | None = None) -> None:
        raise AssertionError


def connection() -> Connection:
    return Connection(Link(NoSocket()), METRICS, "p", 1)


@dataclass
class Line:
    """An answer, and both ends of the line it travels."""

    streams: Streams = field(default_factory=Streams)
    inbox: Inbox = field(default_factory=Inbox)
    replay: Replay = field(default_factory=lambda: Replay(max_frames=LIMIT))
    frames: list[str] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    said: int = 0

    def __post_init__(self) -> None:
        self.delivery = Delivery(ID, lambda _: None, self.replay)
        self.streams.open(Stream("p", ID, "m", self.inbox, None, connection()))

    def say(self, count: int) -> None:
        for _ in range(count):
            if self.replay.fits(100):
                message = InferenceChunk(request_id=ID, seq=self.delivery.next_seq, data={"n": self.said})
                self.replay.add(message.model_dump_json())
                self.said += 1

    def send(self, count: int) -> None:
        for _ in range(count):
            if (frame := self.delivery.take()) is not None:
                self.frames.append(frame)

    def arrive(self, count: int) -> None:
        for frame in self.frames[:count]:
            message = parse_from_provider(frame)
            assert isinstance(message, InferenceAccepted | InferenceChunk | InferenceComplete | InferenceError)
            if (due := self.inbox.put(message, len(frame))) is not None:
                self.acks.append(due)
        del self.frames[:count]

    def hear(self, count: int) -> None:
        for seq in self.acks[:count]:
            self.delivery.acknowledge(seq)
        del self.acks[:count]

    def lose(self) -> None:
        """And connect again."""
        self.frames.clear()
        self.acks.clear()
        self.streams.suspend("p", 0.0)
        offered = [ResumePoint(request_id=ID, next_seq=self.delivery.next_seq)]
        agreed = self.streams.resume("p", connection(), offered)
        if self.inbox.over:
            assert (agreed.resume, agreed.gone) == ([], [ID])
            self.delivery.silence()
        else:
            (point,) = agreed.resume
            assert self.delivery.resume(point.next_seq)

    def settle(self) -> None:
        while self.delivery.pending or self.frames or self.acks:
            self.send(10)
            self.arrive(10)
            self.hear(10)

    def received(self) -> list[object]:
        frames = [frame for frame, _ in self.inbox._frames]
        assert self.inbox._broken is None
        return [one.data["n"] if isinstance(one, InferenceChunk) else type(one) for one in frames]


STEP = st.one_of(
    st.tuples(st.sampled_from(["say", "send", "arrive"]), st.integers(1, 80)),
    st.tuples(st.just("hear"), st.integers(1, 2)),
    st.tuples(st.just("lose"), st.just(0)),
)


@settings(max_examples=examples(10_000))
@given(steps=st.lists(STEP, max_size=50), accepted=st.booleans(), ends=st.integers(0, 50))
def test_over_any_losses_the_coordinator_receives_what_was_said_once_and_in_order(
    steps: list[tuple[str, int]], accepted: bool, ends: int
) -> None:
    line = Line()
    if accepted:
        line.delivery.accept()
    for place, (kind, count) in enumerate(steps):
        if place == ends:
            line.delivery.end(InferenceComplete(request_id=ID, seq=line.delivery.next_seq, usage={}))
        match kind:
            case "say" if not line.delivery.ended:
                line.say(count)
            case "say":
                pass
            case "send":
                line.send(count)
            case "arrive":
                line.arrive(count)
            case "hear":
                line.hear(count)
            case "lose":
                line.lose()
        assert line.replay.next_seq - line.replay.first_seq <= LIMIT + 1
    if not line.delivery.ended:
        line.delivery.end(InferenceComplete(request_id=ID, seq=line.delivery.next_seq, usage={}))
    line.settle()
    numbers = [one for one in line.received() if one is not InferenceAccepted]
    assert numbers == [*range(line.said), InferenceComplete]
    assert line.inbox.over
    assert line.delivery.arrived


def test_a_stream_of_large_chunks_is_acknowledged_before_the_buffer_is_full() -> None:
    """Else nothing would ever be acknowledged: 64 of these do not fit."""
    line = Line(replay=Replay())
    for _ in range(40):
        frame = InferenceChunk(request_id=ID, seq=line.replay.next_seq, data={"n": line.said, "x": "y" * 300_000})
        assert line.replay.fits(len(frame.model_dump_json()))
        line.replay.add(frame.model_dump_json())
        line.said += 1
        line.send(1)
        line.arrive(1)
        line.hear(1)
        line.inbox._frames.clear()
        line.inbox._bytes = 0
    assert line.inbox.next_seq == 40


@pytest.mark.parametrize("size_bytes", [ACK_BYTES // 2, ACK_BYTES])
def test_bytes_are_acknowledged_by_the_megabyte(size_bytes: int) -> None:
    inbox = Inbox()
    due = [inbox.put(InferenceChunk(request_id=ID, seq=seq, data={}), size_bytes) for seq in range(4)]
    assert due == ([None, 1, None, 3] if size_bytes < ACK_BYTES else [0, 1, 2, 3])


def offered(inbox: Inbox, frame: str | None, *points: tuple[str, int]) -> tuple[list[str], list[str], int]:
    """What comes of a stream: resumed, gone, sent again; by the points that its provider offers."""
    streams = Streams()
    streams.open(Stream("p", ID, "m", inbox, frame, None, 0.0))
    agreed = streams.resume("p", connection(), [ResumePoint(request_id=id, next_seq=seq) for id, seq in points])
    return [point.request_id for point in agreed.resume], agreed.gone, len(agreed.again)


def received(count: int) -> Inbox:
    inbox = Inbox()
    for seq in range(count):
        inbox.put(InferenceChunk(request_id=ID, seq=seq, data={}), 1)
    return inbox


def test_what_the_coordinator_does_not_know_is_gone() -> None:
    assert offered(received(2), None, (ID, 2), ("another.1", 5)) == ([ID], ["another.1"], 0)


def test_a_request_that_never_reached_the_provider_is_sent_again() -> None:
    assert offered(Inbox(), "the request") == ([], [], 1)


def test_a_provider_that_has_forgotten_a_stream_has_lost_it() -> None:
    inbox = received(2)
    assert offered(inbox, None) == ([], [], 0)
    assert inbox._broken is Broken.PROVIDER_LOST


def test_a_provider_that_has_said_less_than_was_heard_has_lost_it() -> None:
    inbox = received(3)
    assert offered(inbox, None, (ID, 2)) == ([], [ID], 0)
    assert inbox._broken is Broken.PROVIDER_LOST


def test_a_stream_that_has_ended_here_is_gone() -> None:
    inbox = received(1)
    inbox.break_off(Broken.SLOW_CLIENT)
    assert offered(inbox, None, (ID, 9)) == ([], [ID], 0)


def test_one_provider_cannot_go_on_with_anothers_stream() -> None:
    streams, inbox = Streams(), received(1)
    streams.open(Stream("p", ID, "m", inbox, None, connection()))
    agreed = streams.resume("q", connection(), [ResumePoint(request_id=ID, next_seq=1)])
    assert (agreed.resume, agreed.gone) == ([], [ID])
    assert not inbox.ended
