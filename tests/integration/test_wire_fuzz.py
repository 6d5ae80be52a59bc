"""Fuzzing over real sockets, in both directions: the peer may say anything, and only its own connection suffers."""

import asyncio
import base64
import contextlib
import gc
import hashlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from provider.api.surface import Surface
from provider.link import Link
from provider.operations import Operation, Operations, Say
from provider.protocol import (
    MAX_FRAME_BYTES,
    Ack,
    Cancel,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceRequest,
    LoadModel,
    ModelsUpdate,
    PrefetchModel,
    ProtocolErrorMessage,
    Registered,
    ResumePoint,
    Routability,
    Routable,
    UnloadModel,
    Wire,
    encode,
)
from tests.fixtures.wire_fuzz import Frame, drawn, frames
from tests.integration.coordinator_harness import (
    Running,
    advert,
    chat,
    coordinator,
    heartbeat,
    postgres,
    provider,
    registration,
    with_timings,
    ws_url,
)
from tests.integration.test_link import BODY, IDENTITY, residency_in
from tests.soak import examples

__all__ = ["postgres"]

MOST_GROWTH_BYTES = 200 * 2**20
SCENE_S = 60.0


FROM_PROVIDER: list[Wire] = [
    registration("hostile"),
    heartbeat(1),
    heartbeat(2, slots=[]),
    InferenceAccepted(request_id="j.1"),
    InferenceChunk(request_id="j.1", seq=0, data={"choices": []}),
    InferenceComplete(request_id="j.1", seq=1, usage={}),
    ModelsUpdate(models=[advert("hostile-model")]),
]
STALE = ResumePoint(request_id="f.1", next_seq=9)
FROM_COORDINATOR: list[Wire] = [
    Registered(provider_id="p", heartbeat_s=5, generation=1),
    Registered(provider_id="p", heartbeat_s=0.01, generation=2, resume=[STALE], gone=["f.2"]),
    Routability(models={"m": Routable(routable=False, reason="no_kv_room")}),
    Ack(request_id="f.1", seq=3),
    InferenceRequest(request_id="f.1", endpoint="/v1/completions", body={**BODY, "stream": True}, deadline_ms=10_000),
    InferenceRequest(request_id="f.2", endpoint="/v1/messages", body={"model": BODY["model"]}, deadline_ms=1),
    Cancel(request_id="f.1"),
    LoadModel(model_id="darkbloom-demo"),
    PrefetchModel(model_id="m", source="org/m"),
    ProtocolErrorMessage(message="no"),
]


@dataclass(frozen=True)
class Samples:
    """What is said on one connection each; and, of the first two, whether the peer registers, or welcomes, before."""

    from_provider: list[tuple[list[Frame], bool]]
    from_coordinator: list[tuple[list[Frame], bool]]
    raw: list[tuple[bytes, bool]]


@pytest.fixture(scope="module")
def samples() -> Samples:
    def said(truths: list[Wire]) -> "st.SearchStrategy[tuple[list[Frame], bool]]":
        return st.tuples(st.lists(frames(truths), max_size=8), st.booleans())

    raw = st.tuples(st.binary(max_size=200) | _websocket_frames(), st.booleans())
    count = examples(2_000)
    return Samples(drawn(said(FROM_PROVIDER), count), drawn(said(FROM_COORDINATOR), count), drawn(raw, count))


class Loop:
    """An event loop on a thread of its own, which outlives a test's examples."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, scene: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(scene, self._loop).result(SCENE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def loop(samples: Samples) -> Iterator[Loop]:
    made = Loop()
    yield made
    made.stop()


@contextlib.contextmanager
def entered(loop: Loop, manager: "contextlib.AbstractAsyncContextManager[Any]") -> Iterator[Any]:
    yield loop.run(manager.__aenter__())
    loop.run(manager.__aexit__(None, None, None))


@contextlib.contextmanager
def watched(name: str) -> Iterator[None]:
    """No fault of ours is logged, and memory does not grow with what was said."""
    faults: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info is not None:
                faults.append(self.format(record))

    notes, before, logger = Notes(logging.ERROR), _resident_bytes(), logging.getLogger(name)
    logger.addHandler(notes)
    logger.propagate = False  # pytest keeps every record, and with it the frames that it tells of
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(notes)
    assert faults == []
    assert _resident_bytes() - before < MOST_GROWTH_BYTES


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


# -- a provider that may say anything, to a coordinator


@pytest.fixture(scope="module")
def running(loop: Loop, postgres: str) -> Iterator[Running]:
    patient = with_timings(suspect_after_s=600, lost_after_s=600)  # the good one has no time to beat
    with entered(loop, coordinator(postgres, patient)) as made, entered(loop, provider(made, provider_id="good")):
        yield made


async def still_serves(running: Running) -> None:
    async with running.client() as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        got = await client.post("/v1/chat/completions", json=chat())
    assert got.status_code == 200, got.text


def test_a_coordinator_survives_whatever_a_provider_says(samples: Samples, loop: Loop, running: Running) -> None:
    async def scene(sent: list[Frame], registers: bool) -> None:
        headers = {"Authorization": f"Bearer {running.provider_token}"}
        with contextlib.suppress(ConnectionClosed):
            async with connect(ws_url(running.url), additional_headers=headers, close_timeout=1) as socket:
                if registers:
                    await socket.send(encode(registration("hostile", models=[advert("hostile-model")])))
                for frame in sent:
                    await socket.send(frame)
        await still_serves(running)

    with watched("coordinator"):
        for sent, registers in samples.from_provider:
            loop.run(scene(_encodable(sent), registers))


def test_a_coordinator_survives_raw_bytes_in_place_of_a_handshake_or_of_frames(
    samples: Samples, loop: Loop, running: Running
) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    upgrade = (
        f"GET /ws/provider HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Authorization: Bearer {running.provider_token}\r\n\r\n"
    ).encode()

    async def scene(raw: bytes, upgrades: bool) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError):
            if upgrades:
                writer.write(upgrade)
                assert b" 101 " in await reader.readline()
            writer.write(raw)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await still_serves(running)

    with watched("coordinator"):
        for raw, upgrades in samples.raw:
            loop.run(scene(raw, upgrades))


def test_many_hostile_sockets_leave_nothing_behind(loop: Loop, running: Running) -> None:
    async def scene() -> None:
        headers = {"Authorization": f"Bearer {running.provider_token}"}
        for number in range(60):
            async with connect(ws_url(running.url), additional_headers=headers, close_timeout=1) as socket:
                await socket.send(encode(registration("hostile", models=[advert(f"m{number}")])))
                with contextlib.suppress(ConnectionClosed):
                    await socket.send("x" * 2**20)
        async with running.client() as client:
            fleet = (await client.get("/v1/fleet")).json()["providers"]
        assert {one["name"] for one in fleet} <= {"good", "hostile"}
        await still_serves(running)

    with watched("coordinator"):
        loop.run(scene())


# -- a coordinator that may say anything, to a provider


class NoFetching(Operations):
    """A hostile coordinator may name any source on earth; a test must not go there."""

    def handle(self, asked: Operation, say: Say) -> None:
        if isinstance(asked, LoadModel | UnloadModel):
            super().handle(asked, say)


@asynccontextmanager
async def linked(directory: Path) -> AsyncIterator[Link]:
    async with residency_in(directory) as residency:
        operations = NoFetching(residency)
        surface = Surface(residency, time.time, Random(1))
        yield Link("ws://127.0.0.1:1/", "dbk_x", IDENTITY, residency, surface, Random(1), operations)
        await operations.stop()


@pytest.fixture(scope="module")
def link(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    with entered(loop, linked(tmp_path_factory.mktemp("link"))) as made:
        yield made


async def still_answers(link: Link) -> None:
    """To a well-behaved coordinator, whatever the last one was; and nothing of the last one's is left."""

    async def play(socket: ServerConnection) -> None:
        await socket.send(encode(Registered(provider_id="p", heartbeat_s=5, generation=1)))
        request = InferenceRequest(request_id="good.1", endpoint="/v1/completions", body=BODY, deadline_ms=30_000)
        await socket.send(encode(request))
        async for frame in socket:
            if '"inference_complete"' in str(frame) and '"good.1"' in str(frame):
                heard.set()
            assert '"inference_error"' not in str(frame), frame

    heard = asyncio.Event()
    async with serve(play, "127.0.0.1", 0) as server:
        await _converse(link, server.sockets[0].getsockname()[1], heard)
    assert heard.is_set()


async def _converse(link: Link, port: int, until: asyncio.Event) -> None:
    """One connection of the link, for as long as it lasts or until then."""

    async def converse() -> None:
        with contextlib.suppress(ConnectionClosed, InvalidHandshake, OSError):
            async with connect(f"ws://127.0.0.1:{port}", max_size=MAX_FRAME_BYTES, close_timeout=0.2) as socket:
                await link.converse(socket)

    conversing, ending = asyncio.create_task(converse()), asyncio.create_task(until.wait())
    await asyncio.wait({conversing, ending}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    failure = conversing.exception() if conversing.done() else None
    for task in (conversing, ending):
        task.cancel()
    await asyncio.gather(conversing, ending, return_exceptions=True)
    link.deliveries.suspend()
    if failure is not None:
        raise failure


def test_a_provider_survives_whatever_a_coordinator_says(samples: Samples, loop: Loop, link: Link) -> None:
    async def scene(sent: list[Frame], registers: bool) -> None:
        async def play(socket: ServerConnection) -> None:
            with contextlib.suppress(ConnectionClosed):
                await socket.recv()
                if registers:
                    await socket.send(encode(FROM_COORDINATOR[0]))
                for frame in sent:
                    await socket.send(frame)
                await asyncio.sleep(0.02)
            said.set()

        said = asyncio.Event()
        async with serve(play, "127.0.0.1", 0) as server:
            await _converse(link, server.sockets[0].getsockname()[1], said)
        await still_answers(link)
        assert [one.request_id for one in link.deliveries.resumable if one.request_id != "good.1"] == []

    with watched("provider"):
        for sent, registers in samples.from_coordinator:
            loop.run(scene(_encodable(sent), registers))


def test_a_provider_survives_raw_bytes_in_place_of_frames(samples: Samples, loop: Loop, link: Link) -> None:
    async def scene(raw: bytes) -> None:
        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")]
            key = lines[0].split(b":")[1].strip()
            accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
            writer.write(b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + raw)
            with contextlib.suppress(OSError):
                await writer.drain()
                await asyncio.sleep(0.02)
            writer.transport.abort()

        server = await asyncio.start_server(play, "127.0.0.1", 0)
        async with server:
            await _converse(link, server.sockets[0].getsockname()[1], asyncio.Event())
        await still_answers(link)

    with watched("provider"):
        for raw, _ in samples.raw:
            loop.run(scene(raw))


def _websocket_frames() -> st.SearchStrategy[bytes]:
    """Heads of frames of any kind and any claimed length, with or without what they claim."""
    head = st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=30))
    return head.map(lambda told: bytes(told[:2]) + told[2].to_bytes(8, "big") + told[3])


def _encodable(sent: list[Frame]) -> list[Frame]:
    """A lone surrogate has no bytes: it can be sent only as an escape, which json.dumps writes."""
    return [frame if isinstance(frame, bytes) else frame.encode(errors="replace").decode() for frame in sent]
