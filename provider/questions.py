"""What a worker has been asked and has not answered yet."""

import asyncio
import contextlib
from collections.abc import Callable

from provider.pipe import EngineState, Granted, Report, SequenceState

DESCRIBE_S = 1.0
CLEAR_S = 5.0
"""A worker clears its cache between two steps."""


class Questions:
    """Owner: a slot. A worker that has ended owes no answer."""

    def __init__(self) -> None:
        self._grants: dict[int, asyncio.Future[bool]] = {}
        self._described: asyncio.Future[list[SequenceState]] | None = None
        self._cleared: asyncio.Future[None] | None = None

    async def whether_granted(self, epoch: int) -> bool:
        """Of a grant that has just been sent, or is about to be."""
        asked = self._grants[epoch] = asyncio.get_running_loop().create_future()
        try:
            accepted: bool = await asked
            return accepted
        finally:
            self._grants.pop(epoch, None)

    async def described(self, ask: Callable[[], None]) -> list[SequenceState]:
        """Empty when there is no answer in time. Who asks while somebody waits has the same answer."""
        if self._described is None or self._described.done():
            self._described = asyncio.get_running_loop().create_future()
            ask()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DESCRIBE_S):
                return await asyncio.shield(self._described)
        return []

    async def cleared(self, ask: Callable[[], None]) -> None:
        """Returns when the cache has been given back, or there is no answer in time."""
        self._cleared = asyncio.get_running_loop().create_future()
        ask()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAR_S):
                await self._cleared

    def note(self, report: Report, busy: bool) -> None:
        """`busy`: it had something else to do."""
        cleared, described = self._cleared, self._described
        clear = report.state is not None and _tells_of_clearing(report.state, busy)
        if clear and cleared is not None and not cleared.done():
            cleared.set_result(None)
        if report.sequences is not None and described is not None and not described.done():
            described.set_result(report.sequences)

    def note_grant(self, granted: Granted) -> None:
        for epoch, asked in self._grants.items():  # an older one has been overtaken
            if epoch <= granted.epoch and not asked.done():
                asked.set_result(granted.accepted or epoch < granted.epoch)

    def forget(self) -> None:
        """What it was granted is free."""
        for asked in self._grants.values():
            if not asked.done():
                asked.set_result(True)


def _tells_of_clearing(state: EngineState, busy: bool) -> bool:
    """The step of a busy worker may have ended before it was asked."""
    return state.cache_bytes == 0 or not busy
