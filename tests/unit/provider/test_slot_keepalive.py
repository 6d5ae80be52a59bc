"""A parked chat's stream is kept alive by the clock, whatever else happens."""

import asyncio

from provider.generation import Delta, GenerationRequest, Notice, Sampling
from provider.streams import KEEPALIVE_S, Stream

REQUEST = GenerationRequest(request_id="a", prompt=[1], max_tokens=5, sampling=Sampling())


def notice(kind: str) -> Notice:
    return Notice("a", kind)  # type: ignore[arg-type]


class Clock:
    """Of which nothing passes but what a test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def _heard(stream: Stream, clock: Clock) -> str:
    event = await stream.next_event(clock)
    return event.kind if isinstance(event, Notice) else type(event).__name__


def test_a_keepalive_is_due_every_two_seconds_from_the_park_on_and_no_later_for_being_asked_late() -> None:
    async def scene() -> list[str]:
        stream, clock = Stream(REQUEST), Clock()
        stream.events.put_nowait(notice("preempted"))
        heard = [await _heard(stream, clock)]
        for _ in range(3):
            clock.now_s += KEEPALIVE_S
            heard.append(await _heard(stream, clock))
        assert stream.keepalive_at == 100.0 + 4 * KEEPALIVE_S
        return heard

    assert asyncio.run(scene()) == ["preempted"] + 3 * ["preempt-keepalive"]


def test_what_comes_meanwhile_does_not_put_it_off() -> None:
    async def scene() -> None:
        stream, clock = Stream(REQUEST), Clock()
        stream.events.put_nowait(notice("preempted"))
        await _heard(stream, clock)
        due = stream.keepalive_at
        clock.now_s += 0.9 * KEEPALIVE_S
        stream.events.put_nowait(notice("recomputed"))
        await _heard(stream, clock)
        assert stream.keepalive_at == due

    asyncio.run(scene())


def test_a_chat_that_goes_on_is_not_kept_alive_any_more() -> None:
    async def scene() -> None:
        for ends in (notice("resumed"), Delta("a", [1], "x")):
            stream, clock = Stream(REQUEST), Clock()
            for event in (notice("preempted"), ends):
                stream.events.put_nowait(event)
                await _heard(stream, clock)
            assert stream.keepalive_at is None

    asyncio.run(scene())
