"""When a service is to end: a signal, or the closing of the pipe that the process which started it holds."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Lifetime:
    """`ending` is set by the first signal, or when `parent_fd` reads end of file; a second signal ends at once,
    or, where `hurry` is set, calls that. `draining` is set by another signal, where one is taken for it."""

    def __init__(self, parent_fd: int | None = None) -> None:
        self.ending = asyncio.Event()
        self.draining = asyncio.Event()
        self.hurry: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        if parent_fd is not None:
            os.set_blocking(parent_fd, False)
            loop.add_reader(parent_fd, self._on_parent, parent_fd)

    def drain_on(self, number: int) -> None:
        """It is asked to end as well, but in its own time."""
        asyncio.get_running_loop().add_signal_handler(number, self.draining.set)

    def end(self) -> None:
        self.ending.set()

    async def until_ending(self, work: Awaitable[None]) -> bool:
        """Runs `work` until it is done or the end has come; True if it was done. Its exceptions are raised."""
        task = asyncio.ensure_future(work)
        ending = asyncio.create_task(self.ending.wait())
        try:
            await asyncio.wait([task, ending], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            await task
            return True
        finally:
            for one in (task, ending):
                one.cancel()
            await asyncio.gather(task, ending, return_exceptions=True)

    def _on_signal(self, number: int) -> None:
        if not self.ending.is_set():
            self.ending.set()
        elif self.hurry is not None:
            self.hurry()
        else:
            os._exit(128 + number)

    def _on_parent(self, fd: int) -> None:
        try:
            alive = os.read(fd, 1024) != b""
        except BlockingIOError:
            return
        except OSError:
            alive = False
        if not alive:
            asyncio.get_running_loop().remove_reader(fd)
            self.ending.set()
