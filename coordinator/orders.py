"""What an operator orders of a provider, and waiting for what comes of it."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from provider.protocol import LoadModel, LoadModelStatus, PrefetchModel, UnloadModel

Order = LoadModel | UnloadModel | PrefetchModel
Awaited = LoadModel | UnloadModel
"""Orders that end: a prefetch goes on in the background and reports as it goes."""


class End(StrEnum):
    """How an order ended, other than by a word of the provider's own."""

    UNLOADED = "unloaded"
    PROVIDER_LOST = "provider_lost"


Outcome = LoadModelStatus | End


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    provider_id: str
    order: Awaited
    outcome: asyncio.Future[Outcome]

    def end(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class Orders:
    """Those who wait. Owned by the event loop: the hub says what it hears, and each who waits gets one outcome."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    @contextmanager
    def awaiting(self, provider_id: str, order: Awaited) -> Iterator[asyncio.Future[Outcome]]:
        """To be entered before the order is sent. A provider loads a model once, for however many have asked."""
        waiting = _Waiting(provider_id, order, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            yield waiting.outcome
        finally:
            self._waiting.remove(waiting)

    def told(self, provider_id: str, status: LoadModelStatus) -> None:
        """A failure ends either order; a success, a load."""
        for one in self._of(provider_id, status.model_id):
            if status.status == "failed" or (status.status == "succeeded" and isinstance(one.order, LoadModel)):
                one.end(status)

    def beaten(self, provider_id: str, models: Collection[str]) -> None:
        """A heartbeat with slots for these models: what is not among them is unloaded."""
        for one in self._of(provider_id):
            if isinstance(one.order, UnloadModel) and one.order.model_id not in models:
                one.end(End.UNLOADED)

    def lost(self, provider_id: str) -> None:
        for one in self._of(provider_id):
            one.end(End.PROVIDER_LOST)

    def _of(self, provider_id: str, model: str | None = None) -> list[_Waiting]:
        mine = [one for one in self._waiting if one.provider_id == provider_id]
        return [one for one in mine if model is None or one.order.model_id == model]


def failure_code(status: LoadModelStatus) -> str:
    """A provider's reason reads `code: words`."""
    code, colon, _ = (status.reason or "").partition(":")
    return code if colon and code.isidentifier() else ""


LOAD_FAILURES = frozenset({"load_failed", "exact_unavailable", "model_not_found", "draining", "slot_state", "unnamed"})
"""Beside `memory`: what loads are counted to have failed by. A provider's words make no new one."""


def failure_kind(status: LoadModelStatus) -> str:
    code = failure_code(status) or "load_failed"
    return "memory" if lacked_memory(status) else code if code in LOAD_FAILURES else "unnamed"


def lacked_memory(status: LoadModelStatus) -> bool:
    """The load failed for want of memory: the provider says so, or that it needed more than there was."""
    needed = status.required_bytes is not None and status.free_bytes is not None
    short = needed and (status.required_bytes or 0) > (status.free_bytes or 0)
    return status.status == "failed" and (short or failure_code(status) == "memory_cap")
