"""Where parked sequences' state is: in host memory or in files, within what each may take, or on its way.

Everything here is called by the engine's thread and returns at once; the copying is the mover's, and what has come of
it is asked for between steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from provider.parking.files import ParkFiles, Written
from provider.parking.mover import Lane, Mover

Array = TypeVar("Array")


class Codec(Protocol[Array]):
    """Turns a sequence's arrays into a file or host memory, and back. Called by the mover's threads; what it gives back
    is computed to the end, and what it is given is not kept."""

    def write(self, path: Path, arrays: dict[str, Array]) -> None: ...

    def read(self, path: Path) -> dict[str, Array]: ...

    def to_host(self, arrays: dict[str, Array]) -> Any:
        """Whatever `from_host` understands."""
        ...

    def from_host(self, held: Any) -> dict[str, Array]: ...


class NoRoom(Exception):
    """No tier takes so much more."""


class Tier(Enum):
    RAM = "ram"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Tiers:
    """`ram_bytes`: of host memory, where models' memory is another one; `disk_bytes`: of all processes that share the
    directory, together."""

    disk_bytes: int
    ram_bytes: int = 0
    fail_every: int | None = None
    """Every so many saves, one fails: for tests."""


@dataclass(slots=True)
class Ticket(Generic[Array]):
    """A sequence's place. `dropped`: nobody will ask for it again."""

    id: str
    tier: Tier
    size_bytes: int
    place: Written | Any = None
    dropped: bool = False
    freed: bool = False


@dataclass(frozen=True, slots=True)
class Landed(Generic[Array]):
    """A copy that has ended. `arrays`: what a restore brought back. `failure`: why it came to nothing."""

    ticket: Ticket[Array]
    lane: Lane
    seconds: float
    arrays: dict[str, Array] = field(default_factory=dict)
    failure: str | None = None


class Lot(Generic[Array]):
    """Owner of all that is parked of one model."""

    def __init__(self, tiers: Tiers, files: ParkFiles, codec: Codec[Array], mover: Mover) -> None:
        self._tiers = tiers
        self._files = files
        self._codec = codec
        self._mover = mover
        self._tickets: dict[str, Ticket[Array]] = {}
        self._taken = dict.fromkeys(Tier, 0)
        self._others_bytes = files.others_bytes()
        self._saves = 0
        self._landed: SimpleQueue[Landed[Array]] = SimpleQueue()

    @property
    def savable_bytes(self) -> int:
        """The most that one more sequence may take."""
        return max(self._left(tier) for tier in Tier)

    def save(self, id: str, arrays: dict[str, Array], size_bytes: int) -> None:
        """Takes the arrays, all of them evaluated, over. Raises NoRoom."""
        tier = next((one for one in (Tier.RAM, Tier.DISK) if size_bytes <= self._left(one)), None)
        if tier is None:
            raise NoRoom(f"{size_bytes} bytes more")
        self._saves += 1
        every = self._tiers.fail_every
        fails = every is not None and self._saves % every == 0
        ticket = self._tickets[id] = Ticket[Array](id, tier, size_bytes)
        self._taken[tier] += size_bytes
        self._mover.submit(Lane.SAVE, lambda: self._run(ticket, Lane.SAVE, lambda: self._write(ticket, arrays, fails)))

    def restore(self, id: str) -> None:
        ticket = self._tickets[id]
        self._mover.submit(Lane.RESTORE, lambda: self._run(ticket, Lane.RESTORE, lambda: self._read(ticket)))

    def landed(self) -> list[Landed[Array]]:
        """The copies that have ended since the last call, those of dropped sequences included."""
        found: list[Landed[Array]] = []
        while True:
            try:
                one = self._landed.get_nowait()
            except Empty:
                return found
            self._settle(one)
            found.append(one)

    def drop(self, id: str) -> None:
        """Unknown ids are ignored."""
        ticket = self._tickets.pop(id, None)
        if ticket is not None:
            ticket.dropped = True
            if ticket.place is not None:
                self._free(ticket)

    def close(self) -> None:
        self._mover.close()
        self._tickets.clear()
        self._files.remove_all()

    def _left(self, tier: Tier) -> int:
        if tier is Tier.RAM:
            return self._tiers.ram_bytes - self._taken[tier]
        return self._tiers.disk_bytes - self._taken[tier] - self._others_bytes

    def _settle(self, one: Landed[Array]) -> None:
        """A restored sequence, a failed one and a dropped one leave nothing behind."""
        ticket = one.ticket
        if one.lane is Lane.SAVE and one.failure is None and not ticket.dropped:
            return
        if self._tickets.get(ticket.id) is ticket:
            del self._tickets[ticket.id]
        self._free(ticket)

    def _free(self, ticket: Ticket[Array]) -> None:
        if ticket.freed:
            return
        ticket.freed = True
        self._taken[ticket.tier] -= ticket.size_bytes
        self._others_bytes = self._files.others_bytes()
        place, ticket.place = ticket.place, None
        if isinstance(place, Written):
            place.path.unlink(missing_ok=True)

    def _run(self, ticket: Ticket[Array], lane: Lane, copy: Callable[[], dict[str, Array]]) -> None:
        """The task boundary of a copy: however it ends, the engine learns of it."""
        started = time.monotonic()
        try:
            arrays, failure = copy(), None
        except Exception as error:
            arrays, failure = {}, f"{type(error).__name__}: {error}"
        self._landed.put(Landed(ticket, lane, time.monotonic() - started, arrays, failure))

    def _write(self, ticket: Ticket[Array], arrays: dict[str, Array], fails: bool) -> dict[str, Array]:
        part = self._files.new() if ticket.tier is Tier.DISK else None
        try:
            if fails:
                raise OSError("this save was told to fail")
            if ticket.dropped:
                return {}
            if part is None:
                ticket.place = self._codec.to_host(arrays)
            else:
                self._codec.write(part, arrays)
                ticket.place = self._files.finish(part)
        except BaseException:
            if part is not None:
                part.unlink(missing_ok=True)
            raise
        finally:
            arrays.clear()  # before anybody is told that they are gone
        return {}

    def _read(self, ticket: Ticket[Array]) -> dict[str, Array]:
        place = ticket.place
        if place is None:
            raise OSError("its copy is gone")
        if not isinstance(place, Written):
            return self._codec.from_host(place)
        place.check()
        return self._codec.read(place.path)
