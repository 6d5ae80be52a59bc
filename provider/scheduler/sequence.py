"""One sequence as the scheduler sees it: numbers only."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    PARKED = "parked"


class End(Enum):
    """Why a sequence ended by count alone. (Stop ids and stop strings are the engine's to see.)"""

    LENGTH = "length"
    CONTEXT = "context"


@dataclass(slots=True)
class Sequence:
    """Owned by its scheduler. `computed` counts the positions whose keys, values and state exist now."""

    id: str
    prompt_tokens: int
    max_tokens: int
    priority: int
    arrival: int
    state: State = State.WAITING
    computed: int = 0
    emitted: int = 0
    parks: int = 0
    recomputes: int = 0

    @property
    def positions(self) -> int:
        """Token positions it stands for: prompt and generated."""
        return self.prompt_tokens + self.emitted

    @property
    def last_position(self) -> int:
        """What `positions` comes to if it runs to its own limit."""
        return self.prompt_tokens + self.max_tokens

    @property
    def prefill_target(self) -> int:
        """Positions to compute before it can decode: the newest token is fed by the decode step itself."""
        return self.prompt_tokens + max(0, self.emitted - 1)

    @property
    def rank(self) -> tuple[int, int]:
        """Arrival order, higher priority first."""
        return (-self.priority, self.arrival)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, start + count) of one sequence to prefill.

    `completes` says that decoding can follow; `samples` that the chunk's last logits give a new token (not so
    after a recompute, where the next token is already known).
    """

    id: str
    start: int
    count: int
    completes: bool
    samples: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does, in this order. `enter` (new) and `resume` (parked) become resident.

    `drafts`: for each of `decode`, how many guesses may be verified beside its token; room for them is reserved.
    """

    park: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    enter: tuple[str, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    decode: tuple[str, ...] = ()
    drafts: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.park or self.prefill or self.decode)
