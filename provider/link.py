"""The socket to one coordinator: dial, register, beat, answer requests, and dial again when it is lost."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, Protocol, assert_never
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from provider import tls
from provider.api.surface import Surface
from provider.deliveries import Deliveries
from provider.errors import DarkbloomError
from provider.operations import Operations
from provider.outbox import Outbox
from provider.protocol import (
    CLOSE_BAD_TOKEN,
    CLOSE_BAD_VERSION,
    CLOSE_ENDED,
    CLOSE_SUPERSEDED,
    MAX_FRAME_BYTES,
    PING_S,
    ModelAd,
    ModelsUpdate,
    ProtocolViolation,
    UnknownType,
    Wire,
    encode,
    parse_from_coordinator,
)
from provider.residency import Residency
from provider.session import Abandon, Action, Identity, Operate, Resume, Session, Settle, Start
from provider.system_memory import MemoryKind
from provider.thermal import Thermal, read_thermal

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 30.0
HEALTHY_S = 30.0
"""A connection that lived this long sets the back-off to its beginning."""
BACKOFF_WAITED_FOR_S = 8.0
"""While answers wait for the link, so that an outage which they could outlast is not outlasted by the back-off."""
OPEN_TIMEOUT_S = 10.0
GOODBYE_S = 1.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")

FATAL = {
    CLOSE_BAD_TOKEN: "the token was refused: make one with `darkbloom-py coordinator token create --kind provider`.",
    CLOSE_BAD_VERSION: "it speaks another protocol version: upgrade the older side.",
    CLOSE_SUPERSEDED: "another connection with this provider's identity has come: give another process its own "
    "--data-dir, and name this coordinator once, by one address.",
}


class LinkRefused(DarkbloomError):
    """The coordinator will not have this provider, and trying again cannot change that."""


@dataclass(slots=True)
class LinkState:
    """What `provider status` shows of a link."""

    url: str
    connected: bool = False
    ever_connected: bool = False
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
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        """Several links of one provider share its `operations`."""
        self.state = LinkState(url)
        self._url = url
        self._token = token
        self._tls = tls.of(url, trusted)
        self.identity = identity
        self.residency = residency
        self.deliveries = Deliveries(surface, residency)
        self.operations = operations or Operations(residency)
        self.feel = feel or feel_heat
        self._random = random
        self._connection: Connection | None = None
        residency.on_change(self.beat)

    async def run(self, clock: Callable[[], float]) -> None:
        try:
            await self._keep_dialling(clock)
        finally:
            await self.deliveries.close()

    async def _keep_dialling(self, clock: Callable[[], float]) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            began = clock()
            try:
                self.state.reason = await self._attempt()
                _end_if_cancelled()
            except LinkRefused as refused:
                self.state.reason = str(refused)
                log.error("link_refused reason=%s", refused)
                raise
            finally:
                self.state.connected, self.state.routability = False, {}
                self.deliveries.suspend()
            if clock() - began >= HEALTHY_S:
                backoff_s = BACKOFF_FIRST_S
            longest_s = BACKOFF_WAITED_FOR_S if self.deliveries.resumable else BACKOFF_LAST_S
            pause_s = min(backoff_s, longest_s) * self._random.uniform(0.5, 1.0)
            log.warning("link_down url=%s reason=%s retry_s=%.1f", self._url, self.state.reason, pause_s)
            await asyncio.sleep(pause_s)
            backoff_s = min(2 * backoff_s, BACKOFF_LAST_S)

    async def flush(self) -> None:
        """Returns when every answer has arrived, over whatever connection."""
        await self.deliveries.settled()

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
                ssl=self._tls,
                proxy=_proxy(self._url),
                user_agent_header=f"darkbloom-py/{self.identity.version}",
            ) as socket:
                try:
                    await self.converse(socket)
                except asyncio.CancelledError:
                    await _say_goodbye(socket)
                    raise
        except ConnectionClosed as closed:
            return self._closed(*((closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")))
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

    def _closed(self, code: int | None, why: str) -> str:
        if code in FATAL:
            raise LinkRefused(f"{self._url}: {FATAL[code]}")
        if code is None:
            return "connection lost"
        return f"closed with code {code}" + (f" ({why})" if why else "")


def _end_if_cancelled() -> None:
    """Before Python 3.13 a TaskGroup whose task fails at the moment of a cancellation raises that failure alone."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _say_goodbye(socket: ClientConnection) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE_S):
            await socket.close(CLOSE_ENDED)


def _proxy(url: str) -> Literal[True] | None:
    """True: the proxy that the environment names, but none on the way to this machine itself. Raises InvalidURI."""
    try:
        return None if urlsplit(url).hostname in LOOPBACK else True
    except ValueError as error:
        raise InvalidURI(url, str(error)) from error


class Connection:
    """One live socket. Its writer is the only one that sends; the answers under way outlive it."""

    def __init__(self, socket: Socket, link: Link) -> None:
        self._socket = socket
        self._link = link
        self._session = Session(link.identity)
        self._outbox = Outbox()
        self._beat_now = asyncio.Event()
        self._told: list[ModelAd] | None = None

    async def serve(self) -> None:
        """Until the socket closes (ConnectionClosed)."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                tasks.create_task(self._beat())
                await self._read()
        except* ConnectionClosed as closed:
            raise closed.exceptions[0] from None

    def beat(self) -> None:
        self._beat_now.set()

    def say(self, message: Wire) -> None:
        self._outbox.say(message)

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                message = parse_from_coordinator(frame)
            except UnknownType as unknown:
                log.warning("unknown_message type=%.80s", unknown)
                continue
            except ProtocolViolation as violation:
                log.error("malformed_message reason=%.200s", violation)
                continue
            for action in self._session.receive(message):
                self._act(action)
            self._note_state()

    def _act(self, action: Action) -> None:
        deliveries = self._link.deliveries
        match action:
            case Start(request):
                deliveries.start(request)
            case Abandon(request_id):
                deliveries.abandon(request_id)
            case Resume(points):
                assert self._session.registered is not None
                deliveries.resume_within_s = self._session.registered.resume_within_s
                deliveries.resume(self._outbox, points)
            case Settle(request_id, seq):
                deliveries.acknowledge(request_id, seq)
            case Operate(asked):
                self._link.operations.handle(asked, self._link.say)
            case _:
                assert_never(action)

    def _note_state(self) -> None:
        if self._session.registered is not None and not self._link.state.connected:
            log.info("link_up url=%s", self._link.state.url)
            self.beat()  # from now on at the pace the coordinator asks for
            self._link.state.connected, self._link.state.reason = True, None
            self._link.state.ever_connected = True
        told = self._session.routability
        self._link.state.routability = {model: one.model_dump() for model, one in told.items()}

    async def _write(self) -> None:
        self._told = self._link.residency.advertised()  # as it is now, and not as it was when this was dialled
        register = self._session.register(self._told, self._link.deliveries.resumable)
        await self._socket.send(encode(register))
        while True:
            await self._socket.send(await self._outbox.next_frame())

    async def _beat(self) -> None:
        residency = self._link.residency
        while True:
            self._beat_now.clear()
            thermal = await self._link.feel(self._link.identity.hardware.memory_kind)
            capacity = await residency.capacity()
            self._outbox.say(
                self._session.heartbeat(capacity.memory, capacity.slots, residency.stats(), residency.draining, thermal)
            )
            self._update_models()  # the room for a model is told before the model is
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._session.heartbeat_s):
                    await self._beat_now.wait()

    def _update_models(self) -> None:
        advertised = self._link.residency.advertised()
        if self._told is not None and advertised != self._told and self._outbox.say(ModelsUpdate(models=advertised)):
            self._told = advertised
