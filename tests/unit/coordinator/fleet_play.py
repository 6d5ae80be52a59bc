"""A hub and a dispatcher with providers on sockets in memory, played by a test step by step."""

import asyncio
import random
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from coordinator.config import Timings
from coordinator.dispatch import Dispatcher
from coordinator.hub import Hub
from coordinator.job import Done, Job, Progress
from coordinator.store.records import Usage
from provider.api.wire import Failure
from provider.protocol import (
    Cancel,
    FromCoordinator,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
    InferenceRequest,
    NoticeKind,
    Slot,
    Wire,
    encode,
    parse_from_coordinator,
)
from tests.fixtures.virtual_time import settle
from tests.unit.coordinator.views import MODEL, TABLES, beat, register, slot

DELTA = {"choices": [{"index": 0, "delta": {"content": "word"}}]}


class MemorySocket:
    """The coordinator's end of it; the other is played by whoever has it."""

    def __init__(self) -> None:
        self.heard: list[FromCoordinator] = []
        self._incoming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.closed = False

    async def receive(self) -> MutableMapping[str, Any]:
        return await self._incoming.get()

    async def send_text(self, data: str) -> None:
        if self.closed:
            raise OSError("the peer is gone")
        self.heard.append(parse_from_coordinator(data))

    async def close(self, code: int, reason: str | None = None) -> None:
        self.hang_up()

    def say(self, message: Wire) -> None:
        if not self.closed:
            self._incoming.put_nowait({"type": "websocket.receive", "text": encode(message)})

    def hang_up(self, code: int = 1006) -> None:
        if not self.closed:
            self.closed = True
            self._incoming.put_nowait({"type": "websocket.disconnect", "code": code})


@dataclass
class Asked:
    """A request as its provider has it."""

    request_id: str
    accepted: bool = False
    seq: int = 0


@dataclass
class PlayedProvider:
    provider_id: str
    socket: MemorySocket
    max_concurrency: int
    loaded: bool = True
    beats: int = 0
    taken: int = 0
    """Messages of the coordinator that have been looked at."""
    open: dict[str, Asked] = field(default_factory=dict)
    asked: int = 0

    def listen(self) -> None:
        """Takes in what the coordinator has said since."""
        for message in self.socket.heard[self.taken :]:
            self.taken += 1
            match message:
                case InferenceRequest():
                    self.open[message.request_id] = Asked(message.request_id)
                    self.asked += 1
                case Cancel():
                    self.open.pop(message.request_id, None)
                case _:
                    pass

    def beat(self, status: str = "idle", slots: tuple[Slot, ...] | None = None) -> None:
        """`slots` None: what it has accepted runs, as far as it has places, of the model if it has loaded that."""
        self.listen()
        self.beats += 1
        if slots is None:
            inside = sum(one.accepted for one in self.open.values())
            running = min(inside, self.max_concurrency)
            told = slot(running=running, waiting=inside - running, max_concurrency=self.max_concurrency)
            slots = (told,) if self.loaded else ()
        self.socket.say(beat(self.beats, status, slots))

    def accept(self, request_id: str) -> None:
        self.open[request_id].accepted = True
        self.socket.say(InferenceAccepted(request_id=request_id))

    def chunk(self, request_id: str) -> None:
        self.socket.say(InferenceChunk(request_id=request_id, seq=self._seq(request_id), data=DELTA))

    def notice(self, request_id: str, kind: NoticeKind = "preempted") -> None:
        self.socket.say(InferenceNotice(request_id=request_id, seq=self._seq(request_id), kind=kind))

    def complete(self, request_id: str) -> None:
        seq = self._seq(request_id)
        del self.open[request_id]
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        self.socket.say(InferenceComplete(request_id=request_id, seq=seq, body={"usage": usage}, usage=usage))

    def fail(self, request_id: str, status: int = 503, code: str = "slot_state", retryable: bool = True) -> None:
        seq = self._seq(request_id)
        del self.open[request_id]
        error = {"status": status, "code": code, "message": "no", "retryable": retryable}
        self.socket.say(InferenceError.model_validate({"request_id": request_id, "seq": seq, **error}))

    def _seq(self, request_id: str) -> int:
        asked = self.open[request_id]
        asked.seq += 1
        return asked.seq - 1


@dataclass
class Books:
    """What has been recorded of each job."""

    rows: list[Usage] = field(default_factory=list)
    opened: set[str] = field(default_factory=set)
    """Jobs that a provider was sent."""

    def sent(self, job: Job, progress: Progress) -> None:
        self.opened.add(job.id)

    def ended(self, usage: Usage) -> None:
        self.rows.append(usage)


@dataclass
class Client:
    """One request, and what has come of it."""

    job: Job
    task: asyncio.Task[Done | Failure]
    chunks: int = 0
    notices: int = 0

    @property
    def failure(self) -> Failure:
        result = self.task.result()
        assert isinstance(result, Failure), result
        return result

    @property
    def done(self) -> bool:
        return self.task.done() and not self.task.cancelled() and isinstance(self.task.result(), Done)


class FleetPlay:
    """Made within a running event loop. Timings of the loop's clock."""

    def __init__(self, timings: Timings | None = None, most_waiting: int = 100) -> None:
        self.loop = asyncio.get_running_loop()
        self.timings = timings or Timings()
        self.hub = Hub(self.timings, self.loop.time, lambda message: None)
        self.books = Books()
        self.dispatcher = Dispatcher(
            self.hub,
            self.timings,
            self.books,
            lambda: TABLES,
            self.loop.time,
            lambda: datetime.now(UTC),
            random.Random(7),
            most_waiting,
        )
        self.clients: list[Client] = []
        self.providers: dict[str, PlayedProvider] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._watching = asyncio.create_task(self.hub.watch())

    async def join(
        self, name: str, max_concurrency: int = 2, loaded: bool = True, models: tuple[str, ...] = (MODEL,)
    ) -> PlayedProvider:
        """Registered, and beating once."""
        socket = MemorySocket()
        task = asyncio.create_task(self.hub.serve(socket))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        socket.say(register(provider_id(name), models))
        played = self.providers[name] = PlayedProvider(provider_id(name), socket, max_concurrency, loaded)
        played.beat()
        await settle()
        return played

    def ask(
        self, key: int = 1, priority: int = 0, stream: bool = False, model: str = MODEL, variant: int | None = None
    ) -> Client:
        """Each is another request, but for those of one `variant`."""
        number = len(self.clients)
        top_k = 1 + (number if variant is None else variant)
        job = Job(
            id=f"j{number}",
            token_id=key,
            endpoint="/v1/chat/completions",
            model=model,
            stream=stream,
            body={
                "model": model,
                "messages": [{"role": "user", "content": "Count."}],
                "stream": stream,
                "top_k": top_k,
            },
            started_at=datetime.now(UTC),
            priority=priority,
            request_id=f"r{number}",
        )
        counter = _Counter()
        client = Client(job, asyncio.create_task(self.dispatcher.run(job, counter)))
        counter.client = client
        self.clients.append(client)
        return client

    async def asked(self, count: int, key: int = 1, **values: Any) -> list[Client]:
        """So many of one key, one after the other."""
        clients = []
        for _ in range(count):
            clients.append(self.ask(key, **values))
            await settle(3)
        return clients

    async def settled(self) -> None:
        await settle()
        for played in self.providers.values():
            played.listen()

    @property
    def waiting(self) -> int:
        return sum(one.requests for one in self.dispatcher.admission.waiting())

    def held(self, played: PlayedProvider) -> int:
        view = self.hub.views[played.provider_id]
        return len(view.holds) + len(view.counted)

    async def end(self) -> None:
        """Everything is cancelled; nothing is left behind."""
        for client in self.clients:
            client.task.cancel()
        await asyncio.gather(*(client.task for client in self.clients), return_exceptions=True)
        for played in self.providers.values():
            played.socket.hang_up()
        await self.hub.close_all("the play is over")
        await settle()
        self._watching.cancel()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(self._watching, *self._serving, return_exceptions=True)


class _Counter:
    """dispatch.Client: how much has come."""

    client: Client | None = None

    async def chunk(self, data: dict[str, Any]) -> None:
        assert self.client is not None
        self.client.chunks += 1

    async def notice(self, kind: NoticeKind) -> None:
        assert self.client is not None
        self.client.notices += 1


def provider_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def quick(**values: float) -> Timings:
    return replace(Timings(), **values)
