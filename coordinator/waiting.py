"""Who waits for a place at a provider: bounded for each model, fair between keys. Pure: neither clocks nor tasks.

Keys take turns, one request each, however many they have waiting; among the requests of a key the higher priority
comes first, then the earlier arrival. When the room is full, a key that has more than its share makes way for one that
has less.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Guest = TypeVar("Guest")


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """The place among the requests of one key."""

    before: int
    """Priority, negated: the higher the sooner."""
    arrived_s: float
    number: int
    """Of those that arrived at once, the first to wait."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiter(Generic[Guest]):
    model: str
    key: int
    turn: Turn
    guest: Guest

    def __lt__(self, other: "Waiter[Guest]") -> bool:
        return self.turn < other.turn


@dataclass(frozen=True, slots=True)
class Full:
    """Nobody more may wait for the model."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Joined(Generic[Guest]):
    """`displaced` had to leave for it: the last of the key with the most."""

    displaced: Waiter[Guest] | None = None


@dataclass(slots=True)
class _Line(Generic[Guest]):
    """Of one model. `keys`, the next to have a turn first."""

    keys: OrderedDict[int, list[Waiter[Guest]]] = field(default_factory=OrderedDict)
    length: int = 0

    def add(self, waiter: Waiter[Guest]) -> None:
        insort(self.keys.setdefault(waiter.key, []), waiter)
        self.length += 1

    def remove(self, waiter: Waiter[Guest]) -> bool:
        mine = self.keys.get(waiter.key, [])
        if waiter not in mine:
            return False
        mine.remove(waiter)
        self.length -= 1
        if not mine:
            del self.keys[waiter.key]
        return True

    def of(self, key: int) -> int:
        return len(self.keys.get(key, ()))

    def greediest(self) -> list[Waiter[Guest]]:
        return max(self.keys.values(), key=len)


class WaitingRoom(Generic[Guest]):
    """Owned by the event loop. `most`: how many may wait for one model."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, _Line[Guest]] = {}
        self._joined = 0

    def __len__(self) -> int:
        return sum(line.length for line in self._lines.values())

    @property
    def models(self) -> list[str]:
        """For which anybody waits."""
        return list(self._lines)

    def waiting(self, model: str) -> int:
        line = self._lines.get(model)
        return 0 if line is None else line.length

    def waiter(self, model: str, key: int, priority: int, arrived_s: float, guest: Guest) -> Waiter[Guest]:
        """Not waiting yet."""
        self._joined += 1
        return Waiter(model, key, Turn(-priority, arrived_s, self._joined), guest)

    def join(self, waiter: Waiter[Guest]) -> Joined[Guest] | Full:
        line = self._lines.get(waiter.model) or _Line()
        displaced = None
        if line.length >= self._most:
            if not line.length or len(line.greediest()) <= line.of(waiter.key) + 1:
                return Full(line.length)
            displaced = line.greediest()[-1]
            line.remove(displaced)
        line.add(waiter)
        self._lines[waiter.model] = line
        return Joined(displaced)

    def leave(self, waiter: Waiter[Guest]) -> None:
        """For whatever reason, and however often."""
        line = self._lines.get(waiter.model)
        if line is not None and line.remove(waiter) and not line.length:
            del self._lines[waiter.model]

    def serve(self, waiter: Waiter[Guest]) -> None:
        """It has got its place: the other keys have their turns first now."""
        line = self._lines[waiter.model]
        line.keys.move_to_end(waiter.key)
        self.leave(waiter)

    def in_turn(self, model: str) -> Iterator[Waiter[Guest]]:
        """All who wait for the model, in the order in which they would be served; not to be changed meanwhile."""
        line = self._lines.get(model)
        rank, lines = 0, [] if line is None else list(line.keys.values())
        while lines:
            yield from (one[rank] for one in lines)
            rank += 1
            lines = [one for one in lines if len(one) > rank]
