"""Whatever one provider says, the hub lives, keeps little of it, and the other providers notice nothing."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.inbox import MAX_BYTES, MAX_FRAMES
from provider.protocol import (
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
    LoadModelStatus,
    ModelsUpdate,
    PrefetchStatus,
    Wire,
)
from tests.fixtures.wire_fuzz import Frame, frames
from tests.soak import examples
from tests.unit.coordinator.hub_world import World, chunk, heartbeat, settle, taken, uuid_of, world
from tests.unit.coordinator.views import MODEL, advert, register

BAD, GOOD = 0, 1
TRUTHS: list[Wire] = [
    register(uuid_of(BAD)),
    register(uuid_of(GOOD)),
    heartbeat(2),
    heartbeat(3),
    InferenceAccepted(request_id="j.1"),
    InferenceChunk(request_id="j.1", seq=0, data={"choices": [{"delta": {"content": "x"}}]}),
    InferenceChunk(request_id="j.1", seq=1, data={}),
    InferenceChunk(request_id="good.1", seq=1, data={"n": "another provider's"}),
    InferenceNotice(request_id="j.1", seq=1, kind="preempted"),
    InferenceComplete(request_id="j.1", seq=2, usage={"prompt_tokens": 1, "completion_tokens": 2}),
    InferenceComplete(request_id="good.1", seq=1, usage={}),
    InferenceError(request_id="j.1", seq=2, status=500, code="c", message="m", retryable=True),
    LoadModelStatus(model_id=MODEL, status="failed", reason="memory_cap: no"),
    PrefetchStatus(model_id=MODEL, status="downloading", bytes_done=1, bytes_total=2),
    ModelsUpdate(models=[advert(), advert("another")]),
]


@contextmanager
def errors() -> Iterator[list[str]]:
    """What is logged as a fault of ours."""
    found: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    notes = Notes(logging.ERROR)
    logging.getLogger("coordinator").addHandler(notes)
    try:
        yield found
    finally:
        logging.getLogger("coordinator").removeHandler(notes)


@settings(max_examples=examples(10_000))
@given(sent=st.lists(frames(TRUTHS), min_size=1, max_size=12), registered=st.booleans())
def test_whatever_a_provider_says_no_other_notices_and_little_is_kept(sent: list[Frame], registered: bool) -> None:
    async def scene(world: World) -> None:
        good = await world.join(GOOD)
        bad = await (world.join(BAD) if registered else world.dial())
        with world.lease("good.1", GOOD) as kept:
            lease = world.lease("j.1", BAD) if registered else world.lease("j.1", GOOD)
            with lease as hit:
                for frame in sent:
                    bad.say(frame)
                await settle()
                assert len(hit._frames) <= MAX_FRAMES + 1
                assert hit._bytes <= MAX_BYTES + 2**20
            good.say(chunk(0, "good.1"))
            await settle()
            if good.closed is None:  # else the bad one has registered as this one, which is its right
                assert taken(kept) == [0]
        assert len(world.hub.views) <= 2
        bad.lose()
        await settle()
        for view in world.hub.views.values():
            assert not view.holds
            assert not view.counted
        assert not world.hub._streams
        again = await world.join(BAD)
        assert again.told("registered")

    async def run() -> None:
        async with world() as made:
            await scene(made)

    with errors() as found:
        asyncio.run(run())
    assert found == []
