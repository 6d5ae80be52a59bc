"""Long work in short turns of the event loop: streams go on in between."""

import asyncio
import time
from collections.abc import Callable

TURN_S = 0.001


class Turns:
    """Of one piece of work. `rest_s`: what is left to the others after each turn at least."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rest_s: float = 0.0) -> None:
        self._clock = clock
        self._rest_s = rest_s
        self._began_s = clock()

    async def taken(self) -> None:
        """To be awaited after each small part; what was read before is stale then."""
        if self._clock() - self._began_s >= TURN_S:
            await asyncio.sleep(self._rest_s)
            self._began_s = self._clock()
