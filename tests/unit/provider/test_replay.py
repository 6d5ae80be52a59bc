"""An answer's frames over connections that break: each arrives once, in order, and what is kept is bounded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.protocol import ACK_BYTES
from provider.replay import MAX_BYTES, MAX_FRAMES, Replay, size_of
from tests.soak import examples


def filled(count: int, taken: int = 0, **limits: int) -> Replay:
    replay = Replay(**limits)
    for number in range(count):
        replay.add(f"f{number}")
    for _ in range(taken):
        replay.take()
    return replay


def rest(replay: Replay) -> list[str]:
    frames = []
    while (frame := replay.take()) is not None:
        frames.append(frame)
    return frames


def test_frames_are_taken_once_in_order_and_kept_until_acknowledged() -> None:
    replay = filled(3)
    assert rest(replay) == ["f0", "f1", "f2"]
    assert (replay.first_seq, replay.next_seq, replay.pending) == (0, 3, False)
    replay.acknowledge(1)
    assert (replay.first_seq, replay.next_seq) == (2, 3)


def test_a_new_connection_gets_what_the_other_end_lacks() -> None:
    replay = filled(5, taken=5)
    replay.acknowledge(0)
    assert replay.rewind(3)
    assert (replay.first_seq, rest(replay)) == (3, ["f3", "f4"])
    assert replay.rewind(5)
    assert rest(replay) == []


@pytest.mark.parametrize("next_seq", [1, 6])
def test_what_is_forgotten_or_was_never_said_cannot_be_sent(next_seq: int) -> None:
    replay = filled(5, taken=5)
    replay.acknowledge(1)
    assert not replay.rewind(next_seq)
    assert (replay.first_seq, replay.next_seq, replay.pending) == (2, 5, False)


def test_what_has_not_been_sent_is_not_forgotten_whatever_is_acknowledged() -> None:
    replay = filled(5, taken=2)
    replay.acknowledge(10**9)
    assert (replay.first_seq, rest(replay)) == (2, ["f2", "f3", "f4"])


def test_it_is_full_at_its_frames_and_at_its_bytes_and_light_at_half_of_them() -> None:
    assert not filled(MAX_FRAMES).fits(1)
    assert filled(MAX_FRAMES - 1).fits(1)
    assert filled(MAX_FRAMES // 2).light
    assert not filled(MAX_FRAMES // 2 + 1).light
    heavy = Replay()
    heavy.add("x" * (MAX_BYTES - 10))
    assert (heavy.fits(10), heavy.fits(11), heavy.light) == (True, False, False)


def test_a_frame_larger_than_everything_has_its_turn_when_little_is_unacknowledged() -> None:
    replay = Replay()
    replay.add("x" * (ACK_BYTES - 1))
    assert replay.fits(MAX_BYTES * 2)
    replay.add("x")
    assert not replay.fits(MAX_BYTES)


def test_sizes_are_those_on_the_wire() -> None:
    assert (size_of("abc"), size_of("ä€😀")) == (3, 9)


STEP = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 40)),
    st.tuples(st.just("send"), st.integers(1, 40)),
    st.tuples(st.just("arrive"), st.integers(1, 40)),
    st.tuples(st.just("acks arrive"), st.integers(1, 3)),
    st.tuples(st.just("break"), st.integers(0, 40)),
)


@settings(max_examples=examples(20_000))
@given(steps=st.lists(STEP, max_size=60), every=st.integers(1, 8))
def test_over_any_losses_all_arrives_once_in_order_and_little_is_kept(steps: list[tuple[str, int]], every: int) -> None:
    """`break` loses what is in flight in both directions, but for the first frames of it; then a new connection."""
    limit = 32
    replay, said, got = Replay(max_frames=limit), 0, [0][:0]
    in_flight: list[int] = []
    acks: list[int] = []

    def arrive(count: int) -> None:
        for number in in_flight[:count]:
            if number == len(got):
                got.append(number)
                if len(got) % every == 0:
                    acks.append(number)
            assert number < len(got), "a hole"
        del in_flight[:count]

    def send(count: int) -> None:
        for _ in range(count):
            if (frame := replay.take()) is not None:
                in_flight.append(int(frame))

    for kind, count in steps:
        match kind:
            case "say":
                for _ in range(count):
                    if replay.fits(1):
                        replay.add(str(said))
                        said += 1
            case "send":
                send(count)
            case "arrive":
                arrive(count)
            case "acks arrive":
                for seq in acks[:count]:
                    replay.acknowledge(seq)
                del acks[:count]
            case "break":
                arrive(count)
                in_flight.clear()
                acks.clear()
                assert replay.rewind(len(got))
        assert replay.next_seq - replay.first_seq <= limit
        assert replay.first_seq <= len(got)
    send(said)
    arrive(said)
    assert got == list(range(said))
