import asyncio

import pytest

from coordinator.endless import again


def test_one_time_that_fails_is_logged_and_the_next_comes(caplog: pytest.LogCaptureFixture) -> None:
    times: list[int] = []
    enough = asyncio.Event()

    async def work() -> None:
        times.append(len(times))
        if len(times) == 2:
            raise ValueError("the second")
        if len(times) == 4:
            enough.set()

    async def scene() -> None:
        task = asyncio.create_task(again(0, work, "work_failed"))
        await enough.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert times[:4] == [0, 1, 2, 3]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["work_failed"]
