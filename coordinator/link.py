"""One provider's socket: a bounded outbox, one task that writes it, and a close that cannot hang."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

from starlette.websockets import WebSocketDisconnect

from provider.protocol import Wire, encode

MAX_FRAMES = 1024
MAX_BYTES = 64 * 2**20
LONG_FRAME = 16 * 1024
"""Characters that take a millisecond to read: several such frames that have come together are not read in one turn."""
PEER_GONE = (WebSocketDisconnect, RuntimeError, OSError)
"""What Starlette raises when a socket that has ended is written to or closed."""
FLUSH_S = 2
CLOSE_S = 5
CLOSE_NOT_READING = 1013


class Socket(Protocol):
    """The part of Starlette's WebSocket that a link needs; an ASGI message is a mapping of anything."""

    async def receive(self) -> MutableMapping[str, Any]: ...
    async def send_text(self, data: str) -> None: ...
    async def close(self, code: int, reason: str | None = None) -> None: ...


class Link:
    """Sole writer to its socket. Anyone on the event loop may `send` and `close`; neither waits.

    Full outbox: a request is not taken (`offer`), and any other message closes the link, for a provider that
    does not read cannot be served.
    """

    def __init__(self, socket: Socket, owner: int = 0) -> None:
        self._socket = socket
        self.owner = owner
        """The token that the peer has come by."""
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._something = asyncio.Event()
        self._closing = asyncio.Event()
        self._close: tuple[int, str] = (1000, "")
        self.peer_code: int | None = None
        """What the peer closed with, once it has."""

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def offer(self, frame: str) -> bool:
        """False when the outbox is half full: the rest is for messages that cannot go elsewhere."""
        if self.closing or len(self._frames) >= MAX_FRAMES // 2 or self._bytes >= MAX_BYTES // 2:
            return False
        self._append(frame)
        return True

    def send(self, message: Wire) -> None:
        if len(self._frames) >= MAX_FRAMES or self._bytes >= MAX_BYTES:
            self.close(CLOSE_NOT_READING, "the provider does not read")
        elif not self.closing:
            self._append(encode(message))

    def close(self, code: int, reason: str) -> None:
        """After what has been sent before, as far as the peer still reads. The first close counts."""
        if not self.closing:
            self._close = (code, reason)
            self._closing.set()
            self._something.set()

    async def frames(self) -> AsyncIterator[str | bytes]:
        """What the peer sends, until it disconnects."""
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            yield message["bytes"] if text is None else text
        self.peer_code = message.get("code")

    async def pump(self) -> None:
        """Writes until told to close, then closes. Ends also when the peer is gone."""
        writing = asyncio.create_task(self._write())
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({writing, closing}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({writing}, timeout=FLUSH_S)
        finally:
            closing.cancel()
            writing.cancel()
            await asyncio.wait({writing, closing})
        with suppress(*PEER_GONE, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close(*self._close)

    async def _write(self) -> None:
        with suppress(*PEER_GONE):
            while not (self.closing and not self._frames):
                while self._frames:
                    frame = self._frames.popleft()
                    self._bytes -= len(frame)
                    await self._socket.send_text(frame)
                if not self.closing:
                    self._something.clear()
                    await self._something.wait()

    def _append(self, frame: str) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        self._something.set()
