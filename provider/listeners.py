"""Who is told, at once, that something has changed."""

from collections.abc import Callable


class Listeners:
    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        self._told.append(callback)

    def tell(self) -> None:
        for callback in self._told:
            callback()
