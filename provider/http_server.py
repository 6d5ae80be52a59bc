"""Runs an ASGI app on a socket bound beforehand, with the shutdown left to the caller."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from provider.errors import ConfigError


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals alone: the composition root drains first and then stops it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError when the port cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        # `create_server` appends the address to the reason.
        reason = str(error.strerror).partition(" (while")[0]
        message = f"cannot listen on {host}:{port} ({reason}): choose another --port or end what uses it."
        raise ConfigError(message) from error


def server_for(app: Any) -> HttpServer:
    """`app`: an ASGI application (uvicorn types it loosely)."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=5, server_header=False
    )
    return HttpServer(config)
