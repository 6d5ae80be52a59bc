"""What a coordinator does again and again, whatever becomes of one time."""

import asyncio
from collections.abc import Awaitable, Callable

from coordinator import log


async def again(every_s: float, work: Callable[[], Awaitable[None]], failure: str) -> None:
    """For ever; the boundary of each time: what it raises is logged as the event `failure`."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except Exception as error:
            log.failure(failure, error)
