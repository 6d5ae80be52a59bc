"""The answers that providers are giving: each belongs to a provider, and to whichever connection it has.

A connection that is lost leaves its answers waiting for the next one. Owned by the hub; no I/O and no clock.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordinator.connection import Connection
from coordinator.inbox import Broken, Inbox
from provider.protocol import ResumePoint


@dataclass(slots=True, eq=False)
class Stream:
    """`frame`: the request as it was sent, until something is heard of it. `away_s`: when its connection was lost."""

    provider_id: str
    request_id: str
    model: str
    inbox: Inbox
    frame: str | None
    connection: Connection | None
    away_s: float | None = None


@dataclass(slots=True)
class Agreed:
    """What a provider that has come back is told; `again` are the requests that had not reached it, and `lost` is how
    many of its answers it has forgotten."""

    resume: list[ResumePoint]
    gone: list[str]
    again: list[Stream]
    lost: int


class Streams:
    def __init__(self) -> None:
        self._by_id: dict[str, Stream] = {}
        self._by_provider: dict[str, dict[str, Stream]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._by_id.values())

    def get(self, request_id: str) -> Stream | None:
        return self._by_id.get(request_id)

    def of(self, provider_id: str) -> list[Stream]:
        return list(self._by_provider.get(provider_id, {}).values())

    def open(self, stream: Stream) -> None:
        self._by_id[stream.request_id] = stream
        self._by_provider.setdefault(stream.provider_id, {})[stream.request_id] = stream

    def close(self, stream: Stream) -> None:
        del self._by_id[stream.request_id]
        theirs = self._by_provider[stream.provider_id]
        del theirs[stream.request_id]
        if not theirs:
            del self._by_provider[stream.provider_id]

    def suspend(self, provider_id: str, now_s: float) -> None:
        """Its connection is lost: its answers wait for it."""
        for stream in self.of(provider_id):
            stream.connection, stream.away_s = None, now_s

    def end(self, provider_id: str) -> None:
        """It will not come back with them."""
        for stream in self.of(provider_id):
            stream.connection = None
            stream.inbox.break_off(Broken.PROVIDER_LOST)

    def resume(self, provider_id: str, connection: Connection, points: Iterable[ResumePoint]) -> Agreed:
        """A new connection, and what the provider could go on with. What it knows nothing of is sent again if nothing
        was ever heard of it, and is lost otherwise."""
        offered = {point.request_id: point.next_seq for point in points}
        agreed = Agreed([], [], [], 0)
        for stream in self.of(provider_id):
            inbox, next_seq = stream.inbox, offered.get(stream.request_id)
            if inbox.ended:
                continue
            if next_seq is not None and next_seq >= inbox.next_seq:
                agreed.resume.append(ResumePoint(request_id=stream.request_id, next_seq=inbox.next_seq))
                stream.connection, stream.away_s = connection, None
            elif next_seq is None and stream.frame is not None:
                agreed.again.append(stream)
                stream.connection, stream.away_s = connection, None
            else:
                inbox.break_off(Broken.PROVIDER_LOST)
                agreed.lost += 1
        resumed = {point.request_id for point in agreed.resume}
        agreed.gone.extend(id for id in offered if id not in resumed)
        return agreed
