"""Tasks that nobody waits for: held while they run, logged when they fail, ended together."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """Owner of its tasks; `name` is what the log calls them by."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, done: "asyncio.Task[None]") -> None:
        self._tasks.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("background_task_failed name=%s", self._name, exc_info=error)
