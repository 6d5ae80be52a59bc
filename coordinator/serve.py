"""Runs the coordinator as a process: its port, its signals, its orderly end."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI

from coordinator import garbled, log, open_files
from coordinator.app import create_app, never_opened, opened
from coordinator.config import Settings
from coordinator.errors import BadConfiguration
from coordinator.services import Services, open_services
from coordinator.tls import Certificate
from provider import collector
from provider.http_head import BoundedHttp, BoundedWebSocket
from provider.port import why_not
from provider.protocol import MAX_FRAME_BYTES, PING_S

T = TypeVar("T")
LAST_ANSWERS_S = 5
"""How long the answers that are under way at the very end may take to leave."""


def serve(settings: Settings, exit_when_closed: int | None = None) -> None:
    """Until a signal, or the end of file on the descriptor. Raises CoordinatorError."""
    listener = bind(settings.host, settings.port)
    settings = replace(settings, bounds=open_files.allowed(settings.bounds))
    with asyncio.Runner(loop_factory=_config(create_app(), settings).get_loop_factory()) as runner:
        runner.run(_until_told(settings, listener, exit_when_closed))


def bind(host: str, port: int) -> socket.socket:
    """Taken before anything else is started, so that a port in use costs nothing. Raises BadConfiguration."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise BadConfiguration(why_not(host, port, error)) from error
    return listener


class Stop:
    """Asked once, the coordinator ends in order; asked again, at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def ask(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()


async def run(settings: Settings, listener: socket.socket, stop: Stop, renew: asyncio.Event | None = None) -> None:
    """Answers from the first moment (`starting`), and ends in this order: no new work, what runs finishes,
    providers are left, the port closes, the store closes. `renew`: set to have the certificate read again. Raises
    CoordinatorError."""
    app = create_app()
    certificate = None if settings.tls is None else Certificate(settings.tls)
    keeping = None if certificate is None else asyncio.create_task(certificate.keep(renew or asyncio.Event()))
    server = _Server(_config(app, settings, certificate))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(garbled.told_now_and_then())
            services = await _unless(stop.asked, stack.enter_async_context(open_services(settings)))
            if services is not None:
                opened(app, services)
                collector.freeze()
                log.event("ready", url=_url(listener, settings), pid=os.getpid())
                await _either(stop.asked, serving)
                await _drain(services, stop)
                await _close(server, serving, stop)
    finally:
        never_opened(app)
        await _close(server, serving, stop)
        if keeping is not None:
            keeping.cancel()
    serving.result()
    log.event("stopped")


async def _until_told(settings: Settings, listener: socket.socket, exit_when_closed: int | None) -> None:
    stop, renew = Stop(), asyncio.Event()
    asked = {signal.SIGINT: stop.ask, signal.SIGTERM: stop.ask}
    if settings.tls is not None:
        asked[signal.SIGHUP] = renew.set
    elif signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # and not ignored, as by nohup
        asked[signal.SIGHUP] = stop.ask
    with _signals(asked), _watched(exit_when_closed, stop):
        await run(settings, listener, stop, renew)


async def _drain(services: Services, stop: Stop) -> None:
    draining = asyncio.create_task(services.drain())
    await _either(stop.insisted, draining)
    draining.cancel()
    await asyncio.wait({draining})


async def _unless(asked: asyncio.Event, opening: Coroutine[Any, Any, T]) -> T | None:
    """What is opened; None where the end was asked for meanwhile, and nothing is open."""
    task = asyncio.create_task(opening)
    try:
        await _either(asked, task)
    finally:
        task.cancel()
        await asyncio.wait({task})
    return None if task.cancelled() else task.result()


async def _either(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    happening = asyncio.create_task(event.wait())
    await asyncio.wait({happening, task}, return_when=asyncio.FIRST_COMPLETED)
    happening.cancel()


async def _close(server: "_Server", serving: asyncio.Task[None], stop: Stop) -> None:
    server.should_exit = True
    server.force_exit = stop.insisted.is_set()
    await asyncio.wait({serving})


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would end the process by them, and before the store is closed."""
        yield


def _config(app: FastAPI, settings: Settings, certificate: Certificate | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws=BoundedWebSocket,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=PING_S,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
        server_header=False,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )


@contextmanager
def _signals(asked: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for each, act in asked.items():
        loop.add_signal_handler(each, act)
    try:
        yield
    finally:
        for each in asked:
            loop.remove_signal_handler(each)


@contextmanager
def _watched(descriptor: int | None, stop: Stop) -> Iterator[None]:
    """Stops when whoever holds the other end of this pipe is gone. Raises BadConfiguration."""
    if descriptor is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def readable() -> None:
        with suppress(BlockingIOError):
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                stop.ask()

    try:
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, readable)
    except OSError as error:
        raise BadConfiguration(f"--exit-when-closed {descriptor}: not an open pipe ({error}).") from error
    try:
        yield
    finally:
        loop.remove_reader(descriptor)


def _url(listener: socket.socket, settings: Settings) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
