"""The limit that moves: what it ends, and what it leaves alone."""

import asyncio
from unittest import mock

import pytest

from coordinator.alarm import alarm
from tests.fixtures.virtual_time import run


async def waiting(*steps: tuple[float, float]) -> float:
    """For each step a limit and how long the wait is; returns when it was over."""
    began_s = asyncio.get_running_loop().time()
    try:
        async with alarm() as limit:
            for within_s, wait_s in steps:
                limit.within(within_s)
                await asyncio.sleep(wait_s)
    except TimeoutError:
        return -(asyncio.get_running_loop().time() - began_s)
    return asyncio.get_running_loop().time() - began_s


@pytest.mark.parametrize(
    ("steps", "over_s"),
    [
        pytest.param([(5, 3), (5, 3)], 6, id="each in time"),
        pytest.param([(5, 3), (5, 9)], -8, id="the second too long"),
        pytest.param([(100, 0), (2, 9)], -2, id="a shorter limit after a longer one"),
        pytest.param([(2, 1), (100, 99)], 100, id="a longer limit after a shorter one"),
        pytest.param([(0, 1)], 0, id="no time at all"),
    ],
)
def test_only_a_wait_beyond_its_own_limit_is_ended(steps: list[tuple[float, float]], over_s: float) -> None:
    assert run(waiting(*steps)) == pytest.approx(over_s)


def test_nothing_rings_before_a_limit_is_set_nor_after_the_end() -> None:
    async def scene() -> None:
        async with alarm():
            await asyncio.sleep(1000)
        async with alarm() as limit:
            limit.within(1)
        await asyncio.sleep(10)

    run(scene())


def test_the_cancellation_of_the_task_is_not_taken_for_the_limit() -> None:
    async def scene() -> None:
        task = asyncio.create_task(waiting((5, 4)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scene())


def test_a_thousand_steps_make_one_timer() -> None:
    async def scene() -> int:
        loop = asyncio.get_running_loop()
        with mock.patch.object(loop, "call_at", wraps=loop.call_at) as made:
            async with alarm() as limit:
                for _ in range(1000):
                    limit.within(120)
                    await asyncio.sleep(0)
        return made.call_count

    assert run(scene()) == 1
