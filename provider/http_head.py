"""The head of a request has to come soon, and be of ordinary size.

uvicorn waits for it for ever, and answers a WebSocket handshake that is too large with nothing. No key is asked for
before a head is whole, so anybody could hold sockets by halves of them.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

WITHIN_S = 20.0
MOST_BYTES = 64 * 1024
"""Beside what came together with its beginning. Of a WebSocket handshake the `websockets` library takes 128 headers of
8 KiB."""
ENOUGH = b"connection: close\r\ncontent-length: 0\r\n\r\n"
TIMEOUT, TOO_LARGE = STATUS_LINE[408] + ENOUGH, STATUS_LINE[431] + ENOUGH


class BoundedHttp(HttpToolsProtocol):
    _awaited: asyncio.TimerHandle | None = None
    """Of the head that is still to come whole."""
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        within = self._awaited is not None
        super().data_received(data)
        if within and self._awaited is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_BYTES:
                self._end(TOO_LARGE)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        if self._awaited is None:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_has_come()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._awaited = self.loop.call_later(WITHIN_S, self._on_time_out)

    def _head_has_come(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None

    def _on_time_out(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # the request before has its answer first
        elif self.headers is None:
            self.transport.close()  # nothing was asked
        else:
            self._end(TIMEOUT)

    def _end(self, answer: bytes) -> None:
        self._head_has_come()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()
