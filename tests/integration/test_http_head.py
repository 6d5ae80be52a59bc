"""Heads of requests that do not come, or do not end: nobody holds a socket by them. On real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from provider import http_head
from provider.http_server import bind, server_for

WEBSOCKET = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
SLOW_S = 0.5


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await asyncio.sleep(2 * SLOW_S if scope["path"] == "/slow" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0)
    server = server_for(app)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def answer(port: int, *pieces: bytes) -> bytes:
    """All that comes until the server closes. The pieces go one after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        said = await reader.read()
    writer.close()
    return said


def test_a_head_that_does_not_come_or_is_too_large_ends_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_head, "WITHIN_S", SLOW_S)
    monkeypatch.setattr(http_head, "MOST_BYTES", 1000)
    long = b"X-A: " + 9000 * b"a" + b"\r\n"
    many = b"".join(b"X-%d: a\r\n" % number for number in range(300))
    close = b"Connection: close\r\n\r\n"
    asked = {
        (): b"",
        (b"GET /he",): b"HTTP/1.1 408 ",
        (GET,): b"HTTP/1.1 408 ",
        (WEBSOCKET,): b"HTTP/1.1 408 ",
        (GET, long): b"HTTP/1.1 431 ",
        (WEBSOCKET + long + b"\r\n",): b"HTTP/1.1 431 ",
        (WEBSOCKET + many + b"\r\n",): b"HTTP/1.1 431 ",
        (GET, b"X-A: a\r\n", close): b"HTTP/1.1 200 ",
        (GET + long + close,): b"HTTP/1.1 200 ",
    }

    async def scene() -> None:
        async with served() as port:
            said = await asyncio.gather(*(answer(port, *pieces) for pieces in asked))
            assert [one[:13] for one in said] == list(asked.values())
            after, beside = await asyncio.gather(
                answer(port, GET + b"\r\n", b"GET /half"),
                answer(port, GET.replace(b"/", b"/slow", 1) + b"\r\n" + b"GET /half"),
            )
            for both in (after, beside):
                assert both.startswith(b"HTTP/1.1 200 ")
                assert b"okHTTP/1.1 408 " in both, "what was asked before has its answer first"

    asyncio.run(scene())
