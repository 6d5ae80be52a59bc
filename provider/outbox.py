"""What waits for one socket: messages as they come, and answers in turn, a frame each."""

import asyncio
import logging
from collections import deque

from provider.delivery import Delivery
from provider.protocol import Wire, encode

log = logging.getLogger(__name__)

MAX_MESSAGES = 256


class Outbox:
    """Of one connection; dropped with it. What an answer has said is not lost with it: the delivery keeps it."""

    def __init__(self) -> None:
        self._turns: deque[Wire | Delivery] = deque()
        self._messages = 0
        self._queued: set[Delivery] = set()
        self._something = asyncio.Event()

    def say(self, message: Wire) -> bool:
        """False, and it is left out, when the socket has taken nothing for long."""
        if self._messages >= MAX_MESSAGES:
            log.warning("outbox_full dropped=%s", type(message).__name__)
            return False
        self._messages += 1
        self._queue(message)
        return True

    def ready(self, delivery: Delivery) -> None:
        if delivery not in self._queued:
            self._queued.add(delivery)
            self._queue(delivery)

    async def next_frame(self) -> str:
        while True:
            while not self._turns:
                self._something.clear()
                await self._something.wait()
            turn = self._turns.popleft()
            if not isinstance(turn, Delivery):
                self._messages -= 1
                return encode(turn)
            frame = turn.take()
            if turn.pending:
                self._turns.append(turn)
            else:
                self._queued.discard(turn)
            if frame is not None:
                return frame

    def _queue(self, turn: Wire | Delivery) -> None:
        self._turns.append(turn)
        self._something.set()
