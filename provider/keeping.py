"""A worker kept alive: one that dies or hangs is replaced, for as long as that makes sense."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from provider.errors import ModelError, SelfTestFailed, WorkerError
from provider.runner import Runner

log = logging.getLogger(__name__)

HANG_S = 120.0
"""A busy engine that has been silent this long is ended and replaced. The longest honest step is one prefill chunk."""
WATCH_S = 1.0
QUICK_DEATHS = 4
"""This many deaths in QUICK_DEATHS_S seconds, and no other worker is tried."""
QUICK_DEATHS_S = 120.0
BACKOFF_S = (0.0, 1.0, 4.0)


class Kept(Protocol):
    """Whose worker it is."""

    id: str

    @property
    def runner(self) -> Runner | None:
        """None: there is none any more."""
        ...

    @property
    def silent_s(self) -> float:
        """For how long it has said nothing while somebody waits for it; 0 when nobody does."""
        ...

    async def launch(self) -> None:
        """Another one, with what still waits. Raises ModelError or WorkerError."""
        ...

    def mourn(self, how: str) -> None:
        """It has ended, and been reaped."""
        ...

    def forget_worker(self) -> None: ...

    def replaced(self) -> None:
        """By another one, that serves."""
        ...

    def give_up(self, reason: str, self_test: bool = False) -> None:
        """None is to come. `self_test`: the last one has computed nonsense."""
        ...


class Keeper:
    """Two tasks of one slot: `begin` with a worker that serves, `end` before it is stopped on purpose."""

    def __init__(self, kept: Kept, clock: Callable[[], float], hang_s: float = HANG_S) -> None:
        self._kept = kept
        self._clock = clock
        self._hang_s = hang_s
        self._deaths: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """What former workers came to is forgotten."""
        self._deaths.clear()
        self._tasks = [asyncio.create_task(self._keep_alive()), asyncio.create_task(self._watch())]

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_alive(self) -> None:
        """A task boundary: a slot that is no longer watched over must not look ready."""
        try:
            while (runner := self._kept.runner) is not None:
                how = await runner.wait_ended()
                await runner.stop()
                self._deaths = [at for at in self._deaths if self._clock() - at < QUICK_DEATHS_S] + [self._clock()]
                self._kept.mourn(how)
                if not await self._relaunch(how):
                    return
        except Exception as error:
            log.exception("worker_watch_failed model=%s", self._kept.id)
            self._kept.give_up(f"its worker is no longer watched over ({type(error).__name__})")

    async def _relaunch(self, how: str) -> bool:
        while len(self._deaths) < QUICK_DEATHS:
            await asyncio.sleep(BACKOFF_S[min(len(self._deaths), len(BACKOFF_S)) - 1])
            try:
                await self._kept.launch()
            except SelfTestFailed as error:
                self._kept.give_up(str(error), self_test=True)
                return False
            except (ModelError, WorkerError) as error:
                log.error("worker_restart_failed model=%s error=%s", self._kept.id, error)
                how = str(error)
                self._kept.forget_worker()
                self._deaths.append(self._clock())
            else:
                self._kept.replaced()
                return True
        self._kept.give_up(f"its worker keeps dying ({how})")
        return False

    async def _watch(self) -> None:
        """Ends a worker whose engine has gone silent; `_keep_alive` then replaces it."""
        while True:
            await asyncio.sleep(min(WATCH_S, self._hang_s / 4))
            runner = self._kept.runner
            if runner is not None and self._kept.silent_s > self._hang_s:
                log.error("worker_hung model=%s silent_s=%.1f", self._kept.id, self._kept.silent_s)
                runner.kill()
