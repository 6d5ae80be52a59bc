import asyncio

from hypothesis import given
from hypothesis import strategies as st

from coordinator.inbox import Broken, Frame, Inbox
from provider.protocol import (
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
)

ID = "j.1"
COMPLETE = InferenceComplete(request_id=ID, seq=0, usage={})
ERROR = InferenceError(request_id=ID, seq=0, status=500, code="c", message="m", retryable=False)


def chunk(seq: int) -> InferenceChunk:
    return InferenceChunk(request_id=ID, seq=seq, data={"n": seq})


def taken(inbox: Inbox, count: int) -> list[Frame | Broken]:
    async def take() -> list[Frame | Broken]:
        return [await inbox.take() for _ in range(count)]

    return asyncio.run(take())


def filled(*frames: Frame, size_bytes: int = 1, **limits: int) -> Inbox:
    inbox = Inbox(**limits)
    for frame in frames:
        inbox.put(frame, size_bytes)
    return inbox


def test_frames_come_out_in_order_and_the_last_word_ends_it() -> None:
    accepted = InferenceAccepted(request_id=ID)
    notice = InferenceNotice(request_id=ID, seq=1, kind="resumed")
    last = COMPLETE.model_copy(update={"seq": 2})
    inbox = filled(accepted, chunk(0), notice, last, chunk(3))
    assert taken(inbox, 4) == [accepted, chunk(0), notice, last]
    assert inbox.over


def test_a_repeated_number_is_left_out() -> None:
    assert taken(filled(chunk(0), chunk(0), chunk(1)), 2) == [chunk(0), chunk(1)]


def test_a_hole_breaks_the_stream_after_what_came_before_it() -> None:
    assert taken(filled(chunk(0), chunk(2), chunk(1)), 3) == [
        chunk(0),
        Broken.SEQUENCE_GAP,
        Broken.SEQUENCE_GAP,
    ]


def test_missing_chunks_before_the_completion_are_a_hole() -> None:
    assert taken(filled(COMPLETE.model_copy(update={"seq": 3})), 1) == [Broken.SEQUENCE_GAP]


def test_an_error_needs_no_number() -> None:
    assert taken(filled(chunk(0), ERROR), 2) == [chunk(0), ERROR]


def test_too_many_frames_break_the_stream_and_drop_nothing_before() -> None:
    inbox = filled(chunk(0), chunk(1), chunk(2), max_frames=2)
    assert taken(inbox, 3) == [chunk(0), chunk(1), Broken.SLOW_CLIENT]
    assert not inbox.over


def test_a_frame_behind_too_many_bytes_breaks_the_stream() -> None:
    inbox = filled(chunk(0), chunk(1), chunk(2), size_bytes=60, max_bytes=100)
    assert taken(inbox, 3) == [chunk(0), chunk(1), Broken.SLOW_CLIENT]


def test_a_frame_larger_than_all_that_may_wait_says_nothing_of_its_client() -> None:
    inbox = Inbox(max_bytes=100)
    for number, size_bytes in enumerate((60, 5000)):
        inbox.put(chunk(number), size_bytes)
    assert taken(inbox, 2) == [chunk(0), chunk(1)]
    inbox.put(chunk(2), 60)
    assert taken(inbox, 1) == [chunk(2)]


def test_the_last_word_fits_into_a_full_inbox() -> None:
    assert taken(filled(chunk(0), ERROR, max_frames=1), 2) == [chunk(0), ERROR]


def test_a_break_after_the_last_word_says_nothing() -> None:
    inbox = filled(COMPLETE)
    inbox.break_off(Broken.PROVIDER_LOST)
    assert taken(inbox, 1) == [COMPLETE]


def test_a_reader_that_waits_is_woken() -> None:
    async def scene() -> None:
        inbox = Inbox()
        waiting = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        inbox.put(chunk(0), 1)
        assert await waiting == chunk(0)
        waiting = asyncio.create_task(inbox.take())
        await asyncio.sleep(0)
        inbox.break_off(Broken.PROVIDER_LOST)
        assert await waiting is Broken.PROVIDER_LOST

    asyncio.run(scene())


@given(st.lists(st.integers(0, 8), max_size=20))
def test_what_comes_out_is_always_the_numbers_from_nought_without_holes(seqs: list[int]) -> None:
    inbox = filled(*(chunk(seq) for seq in seqs))
    inbox.break_off(Broken.PROVIDER_LOST)
    numbers = []
    for frame in taken(inbox, len(seqs) + 1):
        if isinstance(frame, InferenceChunk):
            numbers.append(frame.seq)
    assert numbers == list(range(len(numbers)))
