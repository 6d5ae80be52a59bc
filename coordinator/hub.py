"""The meeting point with the providers: their sockets, what is known of them, and the streams they carry."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import assert_never

from coordinator import fleet, log, mirror
from coordinator.config import Bounds, Timings
from coordinator.connection import Connection, Malformed, Spoiled
from coordinator.fleet import Hold, Presence, ProviderView
from coordinator.greeting import registration
from coordinator.inbox import Broken, Frame, Inbox
from coordinator.link import CLOSE_S, LONG_FRAME, Link, Socket
from coordinator.metrics import Metrics
from coordinator.occasional import Occasional
from coordinator.orders import Order, Orders, failure_kind
from coordinator.registry import Registry
from coordinator.roster import Full
from coordinator.streams import Agreed, Stream, Streams
from coordinator.views import Views
from provider.protocol import (
    CLOSE_ENDED,
    CLOSE_SUPERSEDED,
    Ack,
    Cancel,
    DesiredModels,
    Heartbeat,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
    LoadModelStatus,
    ModelsUpdate,
    PrefetchStatus,
    ProtocolErrorMessage,
    Register,
    Registered,
    Routability,
)

CLOSE_GOING_AWAY = 1001
CLOSE_LOST = 4408
"""No heartbeat for 45 s on a socket that is still open."""
CLOSE_NO_PLACE = 1013
"""For now: the provider dials again."""
WATCH_EVERY_S = 1.0
STALL_S = 5.0
"""A watch that is so late says nothing of the providers."""


class Hub:
    """Owns the fleet view and every provider's socket. Lives on one event loop; nothing in it waits for a client."""

    def __init__(
        self,
        timings: Timings,
        clock: Callable[[], float],
        seen: Callable[[Register], None],
        bounds: Bounds | None = None,
    ) -> None:
        self._timings = timings
        self._clock = clock
        self._seen = seen
        self._registry = Registry(bounds or Bounds(), timings, clock)
        self._views = self._registry.views
        self._connections: dict[str, Connection] = {}
        self._streams = Streams()
        self._watch_every_s = min(WATCH_EVERY_S, timings.resume_within_s / 4, timings.failover_after_s)
        self._generations = itertools.count(1)
        self._links: dict[asyncio.Task[None], Link] = {}
        self._turned_away = Occasional()
        self._desired: DesiredModels | None = None
        self._drains: frozenset[str] = frozenset()
        self.orders = Orders()
        self.metrics = Metrics(self._count)
        self.watched_s = clock()
        """When the watch last looked, so that others can tell a stall."""

    @property
    def desired(self) -> DesiredModels | None:
        """The highest revision heard of; None when nobody has ever desired anything."""
        return self._desired

    @property
    def views(self) -> Views:
        return self._views

    def _count(self) -> dict[str, int]:
        now = self._clock()
        states = [fleet.presence(view, now, self._timings) for view in self._views.values()]
        return {state.value: states.count(state) for state in Presence}

    # -- the life of a socket

    async def serve(self, socket: Socket, owner: int = 0) -> None:
        """An accepted and authorised socket, until it is closed by either side. `owner`: the token that it came by."""
        link = Link(socket, owner)
        reading = asyncio.create_task(self._read(link))
        writing = asyncio.create_task(link.pump())
        self._links[writing] = link
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                await asyncio.wait({reading}, timeout=CLOSE_S)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            link.close(CLOSE_GOING_AWAY, "")
            await asyncio.wait({writing}, timeout=CLOSE_S)
            writing.cancel()
            del self._links[writing]

    async def close_all(self, reason: str) -> None:
        """Goes away from every provider; what still runs ends with a typed error."""
        for stream in self._streams:
            stream.inbox.break_off(Broken.STOPPING)
            self._cancel(stream)
        for link in self._links.values():
            link.close(CLOSE_GOING_AWAY, reason)
        if self._links:
            await asyncio.wait(self._links, timeout=CLOSE_S)

    async def watch(self) -> None:
        """Closes sockets that fell silent, gives up answers whose provider stays away, and forgets providers lost long
        ago. Runs for ever."""
        while True:
            self.look()
            await asyncio.sleep(self._watch_every_s)

    def look(self) -> None:
        """One round of the watch."""
        before, now = self.watched_s, self._clock()
        self.watched_s = now
        if now - before >= STALL_S:  # it was this process that slept: what was said meanwhile is read first
            log.warning("watch_late", by_s=now - before)
            return
        for view in list(self._views.values()):
            self._watch(view, now)

    def _watch(self, view: ProviderView, now: float) -> None:
        connection = self._connections.get(view.provider_id)
        if connection is not None:
            if fleet.presence(view, now, self._timings) is Presence.LOST:
                connection.link.close(CLOSE_LOST, "no heartbeat")
                self._lose(connection)
            return
        self._give_up(view, now)
        if self._registry.may_resume(view):
            return
        self._retire(view.provider_id)
        if view.provider_id in self._views and fleet.forgotten(view, now, self._timings):
            self._streams.end(view.provider_id)
            self._registry.forget(view.provider_id)

    def _retire(self, provider_id: str) -> None:
        """It will not come back to its answers."""
        for forgotten in self._registry.retire(provider_id):
            self._streams.end(forgotten)

    def _give_up(self, view: ProviderView, now: float) -> None:
        """Of a provider that is away: what has waited long enough, or has another place to go."""
        for stream in self._streams.of(view.provider_id):
            waited_s = now - stream.away_s if stream.away_s is not None else 0.0
            elsewhere = waited_s >= self._timings.failover_after_s and not stream.inbox.begun
            given_up = waited_s >= self._timings.resume_within_s or (elsewhere and self._served_elsewhere(stream))
            if given_up and not stream.inbox.ended:
                stream.inbox.break_off(Broken.PROVIDER_LOST)
                self._count_resumptions(lost=1)

    def _count_resumptions(self, **outcomes: int) -> None:
        for outcome, count in outcomes.items():
            self.metrics.resumptions.labels(outcome).inc(count)

    def _served_elsewhere(self, stream: Stream) -> bool:
        return any(stream.model in self._views[provider_id].models for provider_id in self._connections)

    async def _read(self, link: Link) -> None:
        """The task boundary of one provider: whatever goes wrong here ends this connection and no other."""
        connection: Connection | None = None
        try:
            connection = await self._greet(link)
            if connection is not None:
                async for frame in link.frames():
                    self._hear(connection, frame)
                    if len(frame) >= LONG_FRAME:
                        await asyncio.sleep(0)
        except Malformed:
            pass
        except Exception as error:
            log.failure("provider_connection_failed", error)
            link.close(1011, "internal error")
        finally:
            if connection is not None and link.peer_code == CLOSE_ENDED:
                self._lose(connection)
            elif connection is not None:
                self._leave(connection)

    async def _greet(self, link: Link) -> Connection | None:
        with self._registry.greeting(link.owner) as full:
            if full is not None:
                self._turn_away(link, full)
                return None
            message = await registration(link, self.metrics, self._timings.register_within_s)
        return None if message is None else self._admit(link, message)

    def _turn_away(self, link: Link, full: Full, provider_id: str = "") -> None:
        self._note_full(link, full, provider_id)
        link.close(CLOSE_NO_PLACE, f"no place for this provider: {full.value}")

    def _note_full(self, link: Link, full: Full, provider_id: str) -> None:
        """Who is turned away dials again, so the log has it now and then."""
        self.metrics.turned_away.labels(full.value).inc()
        times = self._turned_away.happened((full, link.owner), self._clock())
        if times is not None:
            log.warning("provider_turned_away", reason=full.value, token=link.owner, times=times, provider=provider_id)

    def _admit(self, link: Link, message: Register) -> Connection | None:
        older = self._connections.get(message.provider_id)
        # Every key of a client reads the ids of the fleet: an id alone puts nobody out.
        strange = older is not None and older.link.owner != link.owner
        full = Full.OTHER_TOKEN if strange else self._registry.place(message, link.owner)
        if full is not None:
            self._turn_away(link, full, message.provider_id)
            return None
        connection = Connection(link, self.metrics, message.provider_id, next(self._generations))
        connection.awaits = partial(self._awaits, message.provider_id)
        if older is not None:
            self._drop(older, CLOSE_SUPERSEDED, "a newer connection of this provider")
        self._connections[message.provider_id] = connection
        self._registry.enter(message, connection.generation, message.provider_id in self._drains)
        self._seen(message)
        agreed = self._streams.resume(message.provider_id, connection, message.resume)
        link.send(self._welcome(connection, agreed))
        for stream in agreed.again:
            self._send(stream)
        self._count_resumptions(resumed=len(agreed.resume), sent_again=len(agreed.again), lost=agreed.lost)
        if self._desired is not None:
            link.send(self._desired)
        log.event(
            "provider_registered",
            provider=message.provider_id,
            provider_name=message.name,
            version=message.version,
            backend=message.backend,
            models=len(message.models),
            generation=connection.generation,
            resumed=len(agreed.resume),
            gone=len(agreed.gone),
        )
        return connection

    def _welcome(self, connection: Connection, agreed: Agreed) -> Registered:
        return Registered(
            provider_id=connection.provider_id,
            heartbeat_s=self._timings.heartbeat_s,
            generation=connection.generation,
            resume=agreed.resume,
            gone=agreed.gone,
            resume_within_s=self._timings.resume_within_s,
        )

    def _drop(self, connection: Connection, code: int, reason: str) -> None:
        connection.link.close(code, reason)
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """The provider is away and its answers wait for it, unless a newer connection has taken over. Idempotent."""
        if self._forget(connection):
            now = self._clock()
            self._streams.suspend(connection.provider_id, now)
            view = self._views[connection.provider_id]
            self._views[connection.provider_id] = fleet.disconnected(view, now)

    def _lose(self, connection: Connection) -> None:
        """The provider will not come back with its answers. Idempotent."""
        if self._forget(connection):
            self._streams.end(connection.provider_id)
            view = self._views[connection.provider_id]
            self._views[connection.provider_id] = fleet.lost(view)
            self._retire(connection.provider_id)

    def _forget(self, connection: Connection) -> bool:
        if self._connections.get(connection.provider_id) is not connection:
            return False
        del self._connections[connection.provider_id]
        self.orders.lost(connection.provider_id)
        log.event("provider_left", provider=connection.provider_id, generation=connection.generation)
        return True

    # -- what a provider says

    def _hear(self, connection: Connection, frame: str | bytes) -> None:
        message = connection.parse(frame)
        if message is None or self._connections.get(connection.provider_id) is not connection:
            return
        view = self._views[connection.provider_id]
        match message:
            case InferenceChunk() | InferenceNotice() | InferenceComplete() | InferenceError():
                self._deliver(connection, message, len(frame))
            case Heartbeat():
                beaten = self._views[view.provider_id] = mirror.eased(fleet.beaten(view, message, self._clock()))
                self.orders.beaten(view.provider_id, beaten.slots)
            case ModelsUpdate():
                self._advertise(connection, message)
            case InferenceAccepted():
                self._views[view.provider_id] = fleet.accepted(view, message.request_id)
                self._deliver(connection, message, len(frame))
            case PrefetchStatus() | LoadModelStatus():
                self._note_progress(view, message)
            case Spoiled():
                self._spoil(connection, message)
            case Register():
                connection.complain("register comes once")
            case _:
                assert_never(message)

    def _advertise(self, connection: Connection, message: ModelsUpdate) -> None:
        full = self._registry.advertise(connection.provider_id, message)
        if full is not None:
            self._note_full(connection.link, full, connection.provider_id)
            why = f"models_update: no place for so many models: {full.value}; the list before stands"
            connection.link.send(ProtocolErrorMessage(message=why))

    def _awaits(self, provider_id: str, request_id: str) -> bool:
        stream = self._streams.get(request_id)
        return stream is not None and stream.provider_id == provider_id and not stream.inbox.ended

    def _spoil(self, connection: Connection, frame: Spoiled) -> None:
        """What was lost with the frame will not come again: the answer that it was part of ends, and no other."""
        stream = self._streams.get(frame.request_id)
        theirs = stream is not None and stream.connection is connection
        if stream is not None and theirs:
            stream.inbox.break_off(Broken.MALFORMED)
        connection.complain_of(frame, theirs)

    def _note_progress(self, view: ProviderView, message: LoadModelStatus | PrefetchStatus) -> None:
        self._views[view.provider_id] = fleet.told(view, message, self._clock())
        fields = {"model": message.model_id, "status": message.status, "reason": message.reason}
        log.event(message.type, provider=view.provider_id, **fields)
        if isinstance(message, PrefetchStatus):
            self.metrics.prefetches.labels(message.status).inc()
            return
        self.metrics.loads.labels(message.status).inc()
        if message.status == "failed":
            self.metrics.load_failures.labels(failure_kind(message)).inc()
        self.orders.told(view.provider_id, message)

    def _deliver(self, connection: Connection, frame: Frame, size_bytes: int) -> None:
        """Late frames of a request that is over, and another provider's request, are left out."""
        stream = self._streams.get(frame.request_id)
        if stream is None or stream.connection is not connection:
            return
        stream.frame = None
        due = stream.inbox.put(frame, size_bytes)
        if due is not None:
            connection.link.send(Ack(request_id=frame.request_id, seq=due))

    # -- what is asked of a provider

    @contextmanager
    def lease(self, provider_id: str, hold: Hold, request_id: str, frame: str) -> Iterator[Inbox]:
        """A place at a provider that `views` shows connected, and the stream of its answer to `frame`, over however
        many connections.

        Leaving the block by any path frees both, once, and cancels what the provider has not finished.
        """
        stream = Stream(provider_id, request_id, hold.model, Inbox(), frame, self._connections[provider_id])
        self._streams.open(stream)
        self._views[provider_id] = fleet.held(self._views[provider_id], request_id, hold)
        sent = self._send(stream)
        try:
            yield stream.inbox
        finally:
            self._streams.close(stream)
            self._release(provider_id, request_id)
            if sent and not stream.inbox.over:
                self._cancel(stream)

    def _send(self, stream: Stream) -> bool:
        """The request, to the connection that the stream has."""
        assert stream.connection is not None, "nobody is sent a request who is away"
        assert stream.frame is not None, "nothing has been heard of it"
        sent = stream.connection.link.offer(stream.frame)
        if not sent:
            stream.inbox.break_off(Broken.PROVIDER_BUSY)
        return sent

    def _cancel(self, stream: Stream) -> None:
        """A provider that is away is told when it comes back."""
        if stream.connection is not None:
            stream.connection.link.send(Cancel(request_id=stream.request_id))

    def drain(self, providers: frozenset[str]) -> None:
        """All that operators have ordered to drain: what runs there ends in its own time, and nothing more is sent."""
        self._drains = providers
        for view in list(self._views.values()):
            drain = view.provider_id in providers
            if drain is not view.drain_ordered:
                self._views[view.provider_id] = fleet.drain_ordered(view, drain)
                log.event("drain_ordered" if drain else "drain_taken_back", provider=view.provider_id)

    def tell(self, provider_id: str, order: Order | Routability) -> bool:
        """False when the provider is not connected: nothing is kept for later."""
        connection = self._connections.get(provider_id)
        if connection is None:
            return False
        connection.link.send(order)
        return True

    def desire(self, desired: DesiredModels) -> None:
        """To every provider, now and at its registration. An older revision than the last changes nothing."""
        if self._desired is not None and desired.revision <= self._desired.revision:
            return
        self._desired = desired
        log.event("desired_models", revision=desired.revision, models=len(desired.models))
        for connection in self._connections.values():
            connection.link.send(desired)

    def _release(self, provider_id: str, request_id: str) -> None:
        view = self._views.get(provider_id)
        if view is not None:
            self._views[provider_id] = fleet.released(view, request_id)
