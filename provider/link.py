"""The socket to one coordinator: dial, register, beat, answer requests, and dial again when it is lost."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol, assert_never
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from provider.api.surface import Chunk, Complete, NoticeItem, Surface
from provider.api.wire import Failure, internal_error
from provider.errors import DarkbloomError, RequestFailed
from provider.operations import Operations
from provider.protocol import (
    CLOSE_BAD_TOKEN,
    CLOSE_BAD_VERSION,
    CLOSE_SUPERSEDED,
    MAX_FRAME_BYTES,
    PING_S,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
    InferenceRequest,
    ModelAd,
    ModelsUpdate,
    Preempt,
    ProtocolViolation,
    UnknownType,
    Wire,
    encode,
    parse_from_coordinator,
)
from provider.residency import Residency
from provider.session import Abandon, Identity, Operate, Session, Start
from provider.system_memory import MemoryKind
from provider.thermal import Thermal, read_thermal

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 30.0
HEALTHY_S = 30.0
"""A connection that lived this long sets the back-off to its beginning."""
OUTBOX_FRAMES = 256
"""Frames waiting for the socket; when it is full, the generations that fill it wait."""
OPEN_TIMEOUT_S = 10.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEADLINE = Failure(504, "timeout_error", "deadline_exceeded", "The request's deadline passed.", retryable=False)

FATAL = {
    CLOSE_BAD_TOKEN: "the token was refused: make one with `darkbloom-py coordinator token create --kind provider`.",
    CLOSE_BAD_VERSION: "it speaks another protocol version: upgrade the older side.",
    CLOSE_SUPERSEDED: "another process with this provider's identity has connected: give it its own --data-dir.",
}


class LinkRefused(DarkbloomError):
    """The coordinator will not have this provider, and trying again cannot change that."""


@dataclass(slots=True)
class LinkState:
    """What `provider status` shows of a link."""

    url: str
    connected: bool = False
    reason: str | None = None
    routability: dict[str, dict[str, object]] = field(default_factory=dict)


Feel = Callable[[MemoryKind], Awaitable[Thermal]]
"""How hot this machine runs."""


async def feel_heat(kind: MemoryKind) -> Thermal:
    return await asyncio.to_thread(read_thermal, kind)


class Socket(Protocol):
    async def recv(self) -> str | bytes: ...

    async def send(self, message: str, /) -> None: ...


class Link:
    """Owner of one coordinator's socket. `run` ends only by cancellation or LinkRefused."""

    def __init__(
        self,
        url: str,
        token: str,
        identity: Identity,
        residency: Residency,
        surface: Surface,
        random: Random,
        operations: Operations | None = None,
        feel: Feel | None = None,
    ) -> None:
        """Several links of one provider share its `operations`."""
        self.state = LinkState(url)
        self._url = url
        self._token = token
        self.identity = identity
        self.residency = residency
        self.surface = surface
        self.operations = operations or Operations(residency)
        self.feel = feel or feel_heat
        self._random = random
        self._connection: Connection | None = None
        residency.on_change(self.beat)

    async def run(self, clock: Callable[[], float]) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            began = clock()
            try:
                self.state.reason = await self._attempt()
            except LinkRefused as refused:
                self.state.reason = str(refused)
                log.error("link_refused reason=%s", refused)
                raise
            finally:
                self.state.connected = False
            if clock() - began >= HEALTHY_S:
                backoff_s = BACKOFF_FIRST_S
            pause_s = backoff_s * self._random.uniform(0.5, 1.0)
            log.warning("link_down url=%s reason=%s retry_s=%.1f", self._url, self.state.reason, pause_s)
            await asyncio.sleep(pause_s)
            backoff_s = min(2 * backoff_s, BACKOFF_LAST_S)

    async def flush(self) -> None:
        """Returns when every request has been answered and its last frame has left, or the socket is lost."""
        if self._connection is not None:
            await self._connection.flush()

    def say(self, message: Wire) -> None:
        """Over whatever connection there is; dropped where there is none, or it takes no more."""
        if self._connection is not None:
            self._connection.say(message)

    def beat(self) -> None:
        """Sends a heartbeat now: something the coordinator should know at once has changed."""
        if self._connection is not None:
            self._connection.beat()

    async def _attempt(self) -> str:
        """One connection from dial to loss; returns why it ended. Its task boundary: a fault of ours in it ends
        it like a loss."""
        try:
            async with connect(
                self._url,
                additional_headers={"Authorization": f"Bearer {self._token}"},
                max_size=MAX_FRAME_BYTES,
                ping_interval=PING_S,
                open_timeout=OPEN_TIMEOUT_S,
                compression=None,
                proxy=_proxy(self._url),
                user_agent_header=f"darkbloom-py/{self.identity.version}",
            ) as socket:
                await self.converse(socket)
        except ConnectionClosed as closed:
            return self._closed(closed.rcvd.code if closed.rcvd else None)
        except InvalidURI as error:
            raise LinkRefused(f"{self._url}: not a WebSocket address ({error})") from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            log.exception("link_failed url=%s", self._url)
            return f"{type(error).__name__}: {error}"
        return "closed"

    async def converse(self, socket: "Socket") -> None:
        """Over an open socket, until it closes (ConnectionClosed)."""
        self._connection = Connection(socket, self)
        try:
            await self._connection.serve()
        finally:
            self._connection = None

    def _closed(self, code: int | None) -> str:
        if code in FATAL:
            raise LinkRefused(f"{self._url}: {FATAL[code]}")
        return f"closed with code {code}" if code else "connection lost"


def _proxy(url: str) -> Literal[True] | None:
    """True: the proxy that the environment names, but none on the way to this machine itself. Raises InvalidURI."""
    try:
        return None if urlsplit(url).hostname in LOOPBACK else True
    except ValueError as error:
        raise InvalidURI(url, str(error)) from error


class Connection:
    """One live socket. Its writer is the only one that sends; requests run as tasks and end with it."""

    def __init__(self, socket: Socket, link: Link) -> None:
        self._socket = socket
        self._link = link
        self._session = Session(link.identity)
        self._outbox: asyncio.Queue[Wire] = asyncio.Queue(OUTBOX_FRAMES)
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._beat_now = asyncio.Event()
        self._told: list[ModelAd] | None = None

    async def serve(self) -> None:
        """Until the socket closes (ConnectionClosed); whatever still runs for it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                tasks.create_task(self._beat())
                await self._read(tasks)
        except* ConnectionClosed as closed:
            raise closed.exceptions[0] from None

    def beat(self) -> None:
        self._beat_now.set()

    def say(self, message: Wire) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("outbox_full dropped=%s", type(message).__name__)

    async def flush(self) -> None:
        while self._requests:
            await asyncio.wait(self._requests.values())
        await self._outbox.join()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                message = parse_from_coordinator(frame)
            except UnknownType as unknown:
                log.warning("unknown_message type=%s", unknown)
                continue
            except ProtocolViolation as violation:
                log.error("malformed_message reason=%s", violation)
                continue
            for action in self._session.receive(message):
                match action:
                    case Start(request):
                        self._start(request, tasks)
                    case Abandon(request_id):
                        self._abandon(request_id)
                    case Operate(asked):
                        self._link.operations.handle(asked, self._link.say)
                    case _:
                        assert_never(action)
            self._note_state()

    def _note_state(self) -> None:
        if self._session.registered is not None and not self._link.state.connected:
            log.info("link_up url=%s", self._link.state.url)
            self.beat()  # from now on at the pace the coordinator asks for
            self._link.state.connected, self._link.state.reason = True, None
        told = self._session.routability
        self._link.state.routability = {model: one.model_dump() for model, one in told.items()}

    async def _write(self) -> None:
        self._told = self._link.residency.advertised()  # as it is now, and not as it was when this was dialled
        await self._socket.send(encode(self._session.register(self._told)))
        while True:
            message = await self._outbox.get()
            await self._socket.send(encode(message))
            self._outbox.task_done()

    async def _beat(self) -> None:
        residency = self._link.residency
        while True:
            self._beat_now.clear()
            thermal = await self._link.feel(self._link.identity.hardware.memory_kind)
            capacity = await residency.capacity()
            beat = self._session.heartbeat(
                capacity.memory, capacity.slots, residency.stats(), residency.draining, thermal
            )
            await self._outbox.put(beat)
            await self._update_models()  # the room for a model is told before the model is
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._session.heartbeat_s):
                    await self._beat_now.wait()

    async def _update_models(self) -> None:
        advertised = self._link.residency.advertised()
        if self._told is not None and advertised != self._told:
            self._told = advertised
            await self._outbox.put(ModelsUpdate(models=advertised))

    def _start(self, request: InferenceRequest, tasks: asyncio.TaskGroup) -> None:
        if request.request_id in self._requests:
            log.error("duplicate_request request=%s", request.request_id)
            return
        task = tasks.create_task(self._answer(request))
        self._requests[request.request_id] = task
        task.add_done_callback(lambda _: self._requests.pop(request.request_id, None))

    def _abandon(self, request_id: str) -> None:
        task = self._requests.get(request_id)
        if task is not None:
            task.cancel()

    async def _answer(self, request: InferenceRequest) -> None:
        """The task boundary of one request: however it ends, the coordinator is told and nobody else notices."""
        seq = Counter()
        try:
            async with asyncio.timeout(request.deadline_ms / 1000):
                await self._relay(request, seq)
        except RequestFailed as failed:
            await self._fail(request.request_id, seq, failed.failure)
        except TimeoutError:
            await self._fail(request.request_id, seq, DEADLINE)
        except Exception as error:
            log.exception("request_failed request=%s", request.request_id)
            await self._fail(request.request_id, seq, internal_error(f"The provider failed: {type(error).__name__}."))

    async def _relay(self, request: InferenceRequest, seq: "Counter") -> None:
        id = request.request_id
        answer = await self._link.surface.open(request.endpoint, request.body, id)
        await self._link.residency.pre_accept(request.body["model"])
        await self._outbox.put(InferenceAccepted(request_id=id))
        async with aclosing(answer.items()) as items:
            async for item in items:
                match item:
                    case Chunk(data):
                        message: Wire = InferenceChunk(request_id=id, seq=seq.next(), data=data)
                    case NoticeItem(kind):
                        message = InferenceNotice(request_id=id, seq=seq.next(), kind=kind)
                    case Complete(body, usage, parks, recomputes):
                        preempt = Preempt(parks=parks, recomputes=recomputes)
                        message = InferenceComplete(
                            request_id=id, seq=seq.next(), body=body, usage=usage, preempt=preempt
                        )
                    case _:
                        assert_never(item)
                await self._outbox.put(message)

    async def _fail(self, request_id: str, seq: "Counter", failure: Failure) -> None:
        detail = {"type": failure.type, "param": failure.param, **failure.detail}
        await self._outbox.put(
            InferenceError(
                request_id=request_id,
                seq=seq.next(),
                status=failure.status,
                code=failure.code,
                message=failure.message,
                retryable=failure.retryable,
                detail=detail,
            )
        )


class Counter:
    """Frame numbers of one request: 0, 1, 2 ... without holes."""

    def __init__(self) -> None:
        self._next = 0

    def next(self) -> int:
        self._next += 1
        return self._next - 1
