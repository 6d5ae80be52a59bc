"""What each job has used, from its first attempt to its end: written down before it is forgotten, and counted against
its key's limits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from coordinator.job import Job, Progress
from coordinator.limits import RateLimits
from coordinator.recorder import Recorder
from coordinator.store.records import Usage
from provider.api.wire import Failure

CHECKPOINT_EVERY_S = 1.0
"""So much of a running stream may go unbilled when this process is killed."""
LOST = Failure(500, "internal_error", "coordinator_lost", "The coordinator ended before the request did.")


@dataclass(slots=True)
class _Open:
    job: Job
    progress: Progress
    written_chunks: int


class Accounts:
    """Owned by the event loop."""

    def __init__(self, recorder: Recorder, limits: RateLimits, now: Callable[[], datetime]) -> None:
        self._recorder = recorder
        self._limits = limits
        self._now = now
        self._open: dict[str, _Open] = {}

    def sent(self, job: Job, progress: Progress) -> None:
        """At each attempt: from here on the job is billed whatever happens to this process."""
        self._open[job.id] = one = _Open(job, progress, progress.chunks)
        self._draft(one)

    def ended(self, usage: Usage) -> None:
        """Once for each job that was sent."""
        self._open.pop(usage.job_id, None)
        self._limits.settle(usage.job_id, (usage.prompt_tokens or 0) + (usage.completion_tokens or 0))
        self._recorder.add(usage)

    def checkpoint(self) -> None:
        """Writes down how far the streams have come."""
        for one in self._open.values():
            if one.progress.chunks != one.written_chunks:
                self._draft(one)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(CHECKPOINT_EVERY_S)
            self.checkpoint()

    def _draft(self, one: _Open) -> None:
        one.written_chunks = one.progress.chunks
        self._recorder.draft(one.progress.bill(one.job, LOST, self._now()))
