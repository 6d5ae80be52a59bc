"""One sequence as the scheduler sees it: numbers only."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """`SAVING`: has left the batch, and its cells are being copied; `RESTORING`: they are being copied back. Both take
    room; a parked sequence takes none."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    SAVING = "saving"
    PARKED = "parked"
    RESTORING = "restoring"


class How(Enum):
    """What becomes of a parked sequence's cells: they are copied out, or dropped and computed again later."""

    SAVED = "saved"
    DROPPED = "dropped"


class End(Enum):
    """Why a sequence ended by count alone. (Stop ids and stop strings are the engine's to see.)"""

    LENGTH = "length"
    CONTEXT = "context"


@dataclass(slots=True)
class Sequence:
    """Owned by its scheduler. `computed` counts the positions whose keys, values and state exist, here or in a copy.

    `how` and `parked_s` are of its last park, which lasts until `held_until_s` at least; `came_s` and `came_with` tell
    when it last became resident, and how many tokens it had emitted by then; `forced_at`, how many at the last park
    that was forced. `held`: nobody can take what it says, so it stays parked until somebody can.
    `replays`: when it is computed again, what it has drawn goes through decode steps one by one.
    """

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
    how: How = How.DROPPED
    parked_s: float = 0.0
    held_until_s: float = 0.0
    came_s: float = 0.0
    came_with: int = 0
    forced_at: int = 0
    held: bool = False
    replays: bool = False

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
        return self.prompt_tokens if self.replays else self.prompt_tokens + max(0, self.emitted - 1)

    @property
    def replaying(self) -> bool:
        """Whether its next decode row feeds a token behind which the next one is known."""
        return self.state is State.RUNNING and self.computed < self.positions - 1

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
class Park:
    id: str
    how: How


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does, in this order. `restore` begins to bring saved cells back; `enter` (new) and `resume`
    (parked, to be computed again) become resident.

    `drafts`: for each of `decode`, how many guesses may be verified beside its token; room for them is reserved.
    """

    park: tuple[Park, ...] = ()
    restore: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()
    enter: tuple[str, ...] = ()
    prefill: tuple[Chunk, ...] = ()
    decode: tuple[str, ...] = ()
    drafts: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.park or self.restore or self.prefill or self.decode)

    @property
    def moves(self) -> bool:
        return bool(self.park or self.restore or self.resume or self.enter)
