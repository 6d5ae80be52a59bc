"""Who copies: threads of their own, so that no decode step waits for a disk."""

import logging
from collections.abc import Callable
from enum import Enum
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

log = logging.getLogger(__name__)

Job = Callable[[], None]
LAST_JOB_S = 2.0
"""How long an ending worker waits for the copy under way; its file is removed in any case."""


class Lane(Enum):
    """A restore, which somebody waits for, does not queue behind saves. Within a lane jobs keep their order."""

    SAVE = "save"
    RESTORE = "restore"


class Mover(Protocol):
    def submit(self, lane: Lane, job: Job) -> None:
        """Returns at once. A job does not raise."""
        ...

    def close(self) -> None:
        """No further job is begun."""
        ...


class ThreadMover:
    """Implements Mover: one thread per lane, started with the first job."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, tuple[SimpleQueue[Job | None], Thread]] = {}
        self._closed = False

    def submit(self, lane: Lane, job: Job) -> None:
        if lane not in self._lanes:
            queue: SimpleQueue[Job | None] = SimpleQueue()
            thread = Thread(target=self._run, args=(queue,), name=f"park-{lane.value}", daemon=True)
            self._lanes[lane] = (queue, thread)
            thread.start()
        self._lanes[lane][0].put(job)

    def close(self) -> None:
        self._closed = True
        for queue, _ in self._lanes.values():
            queue.put(None)
        for _, thread in self._lanes.values():
            thread.join(LAST_JOB_S)

    def _run(self, queue: "SimpleQueue[Job | None]") -> None:
        while (job := queue.get()) is not None and not self._closed:
            job()
            del job  # it holds what it has moved
