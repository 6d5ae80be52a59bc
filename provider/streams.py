"""The open requests of one model: what each client is to be sent, and what has come of it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from provider.api import wire
from provider.generation import Delta, Entered, Event, Failed, Finished, GenerationRequest, Notice
from provider.totals import Totals

KEEPALIVE_S = 2.0
"""Of a parked chat: within what clients and proxies take for a dead connection. A dead engine is another matter: it is
told by its silence towards the slot, which these do not break."""
ENTRIES = 2
"""A request that was being worked on when its worker died is tried once more: it may be what kills workers."""


@dataclass(slots=True)
class Stream:
    """A request in flight. `begun`: the client has seen something of it, so it cannot start again."""

    request: GenerationRequest
    events: asyncio.Queue[Delta | Notice | Finished | Failed] = field(default_factory=asyncio.Queue)
    begun: bool = False
    entries: int = 0
    held: bool = False
    told_tokens: int = 0
    keepalive_at: float | None = None
    """While it is parked: when its client is to hear that it still is, whatever the queue holds meanwhile."""

    @property
    def may_start_again(self) -> bool:
        return not self.begun and self.entries < ENTRIES

    async def next_event(self, clock: Callable[[], float]) -> Delta | Notice | Finished | Failed:
        try:
            patience_s = None if self.keepalive_at is None else max(0.0, self.keepalive_at - clock())
            async with asyncio.timeout(patience_s):
                event = await self.events.get()
        except TimeoutError:
            assert self.keepalive_at is not None, "only a park is timed"
            self.keepalive_at = max(clock(), self.keepalive_at + KEEPALIVE_S)
            return Notice(self.request.request_id, "preempt-keepalive")
        if not isinstance(event, Notice):
            self.keepalive_at = None
        elif event.kind == "preempted":
            self.keepalive_at = clock() + KEEPALIVE_S
        elif event.kind == "resumed":
            self.keepalive_at = None
        return event


class Streams:
    """Owner: a slot, whose totals they are counted in. `used_at`: when one was last opened or closed."""

    def __init__(self, totals: Totals, clock: Callable[[], float]) -> None:
        self.used_at = clock()
        self._totals = totals
        self._clock = clock
        self._open: dict[str, Stream] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._open.values()))

    def get(self, request_id: str) -> Stream | None:
        return self._open.get(request_id)

    def begin(self, request: GenerationRequest) -> Stream:
        """The caller has seen to it that its id is not in use."""
        stream = self._open[request.request_id] = Stream(request)
        self._empty.clear()
        self.used_at = self._clock()
        self._totals.requests += 1
        return stream

    def close(self, request_id: str) -> None:
        del self._open[request_id]
        self.used_at = self._clock()
        if not self._open:
            self._empty.set()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def deliver(self, event: Event) -> None:
        """One of a request that is not open any more is nobody's."""
        stream = self._open.get(event.request_id)
        if stream is None:
            return
        if isinstance(event, Entered):
            stream.entries += 1
            return
        stream.begun = True
        self._count(stream, event)
        if isinstance(event, Finished | Failed):
            self.close(event.request_id)
        stream.events.put_nowait(event)

    def end_all(self, failure: wire.Failure) -> None:
        for stream in self:
            self.deliver(Failed(stream.request.request_id, failure))

    def end_those_lost(self, failure: wire.Failure) -> int:
        """Of a worker that has died: how many could not start again with another one."""
        lost = [one for one in self if not one.may_start_again]
        for stream in lost:
            self.deliver(Failed(stream.request.request_id, failure))
        return len(lost)

    def _count(self, stream: Stream, event: Delta | Notice | Finished | Failed) -> None:
        totals = self._totals
        match event:
            case Delta():
                stream.told_tokens += len(event.token_ids)
                totals.tokens += len(event.token_ids)
            case Finished():
                # The token that ends an answer is generated, and part of no delta.
                totals.tokens += event.completion_tokens - stream.told_tokens
                totals.prompt_tokens += event.prompt_tokens
            case Failed():
                totals.failures += 1
            case Notice():
                pass  # a park that follows another before its chat decodes again is told once, and counted twice
