"""For what may happen thousands of times a second and is worth a line of the log now and then. Pure."""

from collections.abc import Hashable

EVERY_S = 60.0
MOST_KINDS = 1000


class Occasional:
    """By kind: the first time is told, and then once a minute how often it has happened."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._kinds: dict[Hashable, tuple[float, int]] = {}

    def happened(self, kind: Hashable, now_s: float) -> int | None:
        """How often since it was told last, this time included, where it is to be told now."""
        told_s, since = self._kinds.get(kind, (None, 0))
        if told_s is not None and now_s - told_s < self._every_s:
            self._kinds[kind] = told_s, since + 1
            return None
        self._kinds.pop(kind, None)
        if len(self._kinds) >= MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = now_s, 0
        return since + 1
