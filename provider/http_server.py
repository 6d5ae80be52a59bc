"""Runs an ASGI app on a socket bound beforehand, with the shutdown left to the caller."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from provider.errors import ConfigError
from provider.http_head import BoundedHttp, BoundedWebSocket
from provider.port import why_not

BACKLOG = 1024


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals alone: the composition root drains first and then stops it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError when the port cannot be had.

    Made with its protocol named: asyncio switches Nagle's algorithm off only on sockets that say they are TCP, and
    with it on, the second packet of every answer waits 40 ms for the client's acknowledgement.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            undo.pop_all()
            return sock
    except OSError as error:
        raise ConfigError(why_not(host, port, error)) from error


def server_for(app: Any) -> HttpServer:
    """`app`: an ASGI application (uvicorn types it loosely)."""
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws=BoundedWebSocket,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    return HttpServer(config)
