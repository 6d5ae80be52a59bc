"""One demo model, with its worker, behind `local` and behind a coordinator, for the whole session of a test process."""

import asyncio
import queue
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from provider.api.access import Access
from provider.api.app import create_app
from provider.api.surface import Surface
from provider.config import read_config
from provider.http_server import server_for
from provider.link import Link
from provider.local import create_residency
from provider.protocol import Hardware
from provider.session import Identity
from provider.status import Status
from tests.integration.client import MODEL, Api
from tests.integration.coordinator_harness import coordinator, postgres, ws_url
from tests.integration.processes import until

__all__ = ["postgres"]

HARDWARE = Hardware(chip="none", memory_bytes=8 * 2**30, memory_kind="host", cores=1)
LOCAL_KEY = "dbk_local"


@pytest.fixture(scope="session")
def apis(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Api]]:
    """One provider, with its worker, behind both servers; the servers share the loop of a thread."""
    ready: queue.Queue[dict[str, Api] | BaseException] = queue.Queue()
    loop, leaving = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        try:
            async with serving(postgres, tmp_path_factory.mktemp("provider")) as started:
                ready.put(started)
                await leaving.wait()
        except BaseException as error:
            ready.put(error)
            raise

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        started = ready.get(timeout=120)
        if isinstance(started, BaseException):
            raise started
        until(lambda: bool(started["fleet"].get("/v1/models").json()["data"]), what="a provider")
        yield started
    finally:
        loop.call_soon_threadsafe(leaving.set)
        thread.join(60)
        loop.close()


@asynccontextmanager
async def serving(postgres: str, directory: Path) -> AsyncIterator[dict[str, Api]]:
    """Without drafts every token is an event of its own, so that two streams can be compared byte by byte."""
    flags = {"mtp_mode": "off"}
    config = read_config(flags, (MODEL,), backend="mlx", data_dir=directory, file=directory / "none.toml")
    residency = create_residency(config)
    await residency.start()
    listener = socket.create_server(("127.0.0.1", 0))
    server = server_for(create_app(residency, Status(residency), access=Access((LOCAL_KEY,))))
    local = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with coordinator(postgres) as running:
            surface = Surface(residency, time.time, Random(1))
            identity = Identity("6f2f6a53-5f0c-4a6b-b8cb-9a4cf5a0a9a1", "test", "0.9.0", "mlx", HARDWARE)
            link = Link(ws_url(running.url), running.provider_token, identity, residency, surface, Random(1))
            linked = asyncio.create_task(link.run(time.monotonic))
            yield {
                "local": Api(f"http://127.0.0.1:{listener.getsockname()[1]}", LOCAL_KEY),
                "fleet": Api(running.url, running.api_key),
            }
            linked.cancel()
            await asyncio.wait({linked})
    finally:
        server.should_exit = True
        await asyncio.wait({local})
        await residency.stop()
