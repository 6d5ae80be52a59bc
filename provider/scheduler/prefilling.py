"""How a prompt is cut into chunks, and how a sequence whose cells were dropped comes back to where it stood."""

from collections.abc import Callable
from dataclasses import dataclass

GRID_TOKENS = 16
"""A prefill is cut only on this grid, counted from position 0: the recurrence's sub-chunks lie on it."""

Cut = Callable[[int, int, int, int], int]
"""(start, remaining, room, chunk_tokens) -> positions of the next chunk; 0: it waits for more room."""


def to_fit(start: int, remaining: int, room: int, chunk_tokens: int) -> int:
    """As much as there is room for."""
    if remaining <= room:
        return remaining
    return max(0, (start + room) // GRID_TOKENS * GRID_TOKENS - start)


def whole(start: int, remaining: int, room: int, chunk_tokens: int) -> int:
    """The chunks that the sequence has when it is alone: a neighbour delays one, and never cuts it."""
    longest = chunk_tokens // GRID_TOKENS * GRID_TOKENS
    count = min(remaining, longest - start % longest)
    return count if count <= room else 0


@dataclass(frozen=True, slots=True)
class Prefilling:
    """`replays`: of a sequence that is computed again, only the prompt is prefilled; the tokens it has drawn are fed to
    decode steps one by one, as they were the first time. `waits`: every step keeps room for a whole chunk."""

    cut: Cut = to_fit
    replays: bool = False
    waits: bool = False


SHARED = Prefilling()
SOLO = Prefilling(whole, replays=True, waits=True)
"""Exact mode: which launches compute a sequence's positions depends on the sequence alone."""
