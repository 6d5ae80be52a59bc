"""A time limit on what a task waits for, moved with every step.

`asyncio.timeout` makes and cancels a timer of the event loop each time, two for each chunk that is passed on. Here
moving the limit is an assignment: the one timer looks, when it goes off, whether it has been moved.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Alarm:
    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._due_s = self._timer_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> None:
        """From now on, what is waited for must come so soon."""
        self._due_s = self._loop.time() + seconds
        if self._due_s < self._timer_s:
            self.stop()
            self._start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        self._timer_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def _ring(self) -> None:
        if self._loop.time() < self._due_s:
            self._start()
        else:
            self._limit.reschedule(self._loop.time())


@asynccontextmanager
async def alarm() -> AsyncIterator[Alarm]:
    """Around the waits of this task; without a limit at first. Raises TimeoutError where one was too long."""
    async with asyncio.timeout(None) as limit:
        one = Alarm(limit)
        try:
            yield one
        finally:
            one.stop()
