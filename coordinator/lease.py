"""A place at a provider, and what asks for one."""

from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from coordinator.inbox import Inbox
from coordinator.routing import Refused, Request
from provider.api.wire import Failure


class Lease:
    """A place at a provider and the stream of its answer, until it is closed."""

    def __init__(self, provider_id: str, request_id: str, generation: int, inbox: Inbox, held: ExitStack) -> None:
        self.provider_id = provider_id
        self.request_id = request_id
        self.generation = generation
        """Of the connection that it was sent over."""
        self.inbox = inbox
        self._held = held

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ask(Protocol):
    """A request that wants a place; `take` and `refuse` do not wait."""

    @property
    def name(self) -> str:
        """For the log."""

    @property
    def key(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrived_s(self) -> float: ...
    @property
    def request(self) -> Request: ...
    def take(self, provider_id: str) -> Lease | Failure: ...
    def refuse(self, refused: Refused) -> Failure: ...
