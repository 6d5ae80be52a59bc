"""A TCP proxy whose line a test can break, stall and close: runs on a thread of its own."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.integration.processes import free_port

CHUNK = 2**16


class Proxy:
    """In front of a port of this machine. Everything is told to its loop; `port` is where to dial."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.accepted = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._open = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def reset(self) -> None:
        """Every connection ends at once, as when a machine in the middle has forgotten them."""
        self._tell(self._reset)

    def stall(self) -> None:
        """Nothing passes any more, and nobody is told: a partition."""
        self._tell(self._flows.clear)

    def flow(self) -> None:
        self._tell(self._flows.set)

    def shut(self) -> None:
        """New connections are reset from now on."""
        self._tell(lambda: setattr(self, "_open", False))

    def open(self) -> None:
        self._tell(lambda: setattr(self, "_open", True))

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self.reset()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _tell(self, act: Callable[[], object]) -> None:
        done = threading.Event()

        def acted() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(acted)
        assert done.wait(10)

    def _reset(self) -> None:
        for writer in self._writers:
            _abort(writer)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._ready.set()
        self._loop.run_forever()
        serving.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            return _abort(writer)
        self.accepted += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, back))
                tasks.create_task(self._pump(there, writer))
        except* OSError:
            pass
        finally:
            self._writers -= {writer, back}
            for one in (writer, back):
                one.close()
        return None

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        writer.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    """With a reset, and without what is still to be written."""
    with contextlib.suppress(OSError):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def proxied(target: int) -> Iterator[Proxy]:
    proxy = Proxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
