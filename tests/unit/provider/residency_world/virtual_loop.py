"""An event loop whose time stands still until a test moves it, and that says so when nothing can happen any more."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Stuck(RuntimeError):
    """The test waits for what nobody is going to do."""


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._ending = False
        self._at_end: list[Callable[[], None]] = []

    def time(self) -> float:
        return self._now

    @property
    def quiet(self) -> bool:
        """Nothing but the caller is ready to run."""
        return not self._ready  # type: ignore[attr-defined]

    async def settle(self) -> None:
        """Returns when everybody waits for something outside, or for time to pass."""
        while not self.quiet:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Timer by timer, so that each sees its own moment."""
        end = self._now + seconds
        await self.settle()
        while (due := self._next_timer()) is not None and due <= end:
            self._now = max(self._now, due)
            await asyncio.sleep(0)
            await self.settle()
        self._now = end
        await self.settle()

    def _next_timer(self) -> float | None:
        timers = [one.when() for one in self._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
        return min(timers, default=None)

    def at_end(self, callback: Callable[[], None]) -> None:
        self._at_end.append(callback)

    def end(self) -> None:
        """Nothing is held any more: what is still under way may clean up."""
        self._ending = True
        for callback in self._at_end:
            callback()

    def _run_once(self) -> None:
        if self.quiet and not self._stopping:  # type: ignore[attr-defined]
            due = self._next_timer()
            if due is None or not self._ending:
                raise Stuck("nobody is ready, and time is the test's to move")
            self._now = max(self._now, due)
        super()._run_once()  # type: ignore[misc]


def play(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        try:
            await script()
        finally:
            loop.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
