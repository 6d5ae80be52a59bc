"""Continuous batching as a pure state machine: `plan()` reads, `commit()` moves.

Running rows first, in admission order; prefill in chunks whose total per step is bounded, so that a decode row is
never delayed by more than one chunk; admission strictly in arrival order (priority first). A sequence enters
when its prompt and one step fit, never for prompt + max_tokens; when the next step of those inside does not fit, even
without drafts, the least entitled one is parked (here by dropping its cells and computing them again later) and
nobody fails.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provider.scheduler.pool import Pool
from provider.scheduler.sequence import Chunk, End, Plan, Sequence, State

STEP_TOKENS = 2048
CHUNK_TOKENS = 512
GRID_TOKENS = 16
"""A prefill is cut only on this grid, counted from position 0: the recurrence's sub-chunks lie on it."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_concurrent: int
    n_ctx: int
    step_tokens: int = STEP_TOKENS
    chunk_tokens: int = CHUNK_TOKENS

    def __post_init__(self) -> None:
        if self.max_concurrent < 1 or self.chunk_tokens < GRID_TOKENS or self.step_tokens < 1:
            raise ValueError(f"no progress is possible under {self}")


@dataclass(frozen=True, slots=True)
class Counts:
    """Sequences by state, and positions: held by residents, and wanted by those who wait or are parked."""

    running: int
    prefill: int
    waiting: int
    parked: int
    tokens_used: int
    tokens_queued: int


class Scheduler:
    """Owner: the engine's loop. Integers in, a Plan out; no tensors, no clock."""

    def __init__(self, limits: Limits, pool: Pool) -> None:
        self.limits = limits
        self.pool = pool
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[Sequence] = []
        self._resident: list[Sequence] = []
        self._parked: deque[Sequence] = deque()
        self._arrivals = 0

    def add(self, id: str, prompt_tokens: int, max_tokens: int | None, priority: int = 0) -> Sequence:
        """`max_tokens` None: as far as the context reaches. The caller has refused what can never fit."""
        if id in self._sequences:
            raise ValueError(f"sequence {id!r} is already here")
        if not 0 < prompt_tokens < self.n_ctx:
            raise ValueError(f"a prompt of {prompt_tokens} tokens can never run in a context of {self.n_ctx}")
        room = self.n_ctx - prompt_tokens
        wanted = room if max_tokens is None else max_tokens
        sequence = Sequence(id, prompt_tokens, wanted, priority, self._arrivals)
        self._arrivals += 1
        self._sequences[id] = sequence
        insort(self._waiting, sequence, key=lambda one: one.rank)
        return sequence

    @property
    def n_ctx(self) -> int:
        return min(self.limits.n_ctx, self.pool.largest())

    @property
    def running(self) -> int:
        return sum(one.state is State.RUNNING for one in self._resident)

    @property
    def open(self) -> int:
        return len(self._sequences)

    def get(self, id: str) -> Sequence | None:
        return self._sequences.get(id)

    def remove(self, id: str) -> bool:
        """Forgets a sequence in whatever state it is (cancelled, finished or failed)."""
        sequence = self._sequences.pop(id, None)
        if sequence is None:
            return False
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is State.PARKED:
            self._parked.remove(sequence)
        else:
            self._resident.remove(sequence)
        return True

    def resize(self, pool: Pool) -> bool:
        """From now on this room. False, and nothing changes, when an open sequence could not reach its end in it:
        what was promised to a chat is not taken back. Who no longer fits is parked by the next plan."""
        room = min(self.limits.n_ctx, pool.largest())
        if any(min(one.last_position, self.n_ctx) > room for one in self._sequences.values()):
            return False
        self.pool = pool
        return True

    @property
    def fits(self) -> bool:
        """Whether the residents are within the room; not so between a resize and the parks it calls for."""
        return self.pool.holds(one.positions for one in self._resident)

    def plan(self, drafts: int = 0) -> Plan:
        """The next step, with up to `drafts` guesses verified in each row. Changes nothing: two calls in a row give
        the same plan."""
        stay, park = self._make_room()
        running = [one for one in stay if one.state is State.RUNNING][: self.limits.step_tokens]
        enter = [] if park else list(self._admissible(stay))
        lengths = self._draft_lengths(running, [*stay, *enter], drafts)
        room = min(self.limits.chunk_tokens, self.limits.step_tokens - len(running) - sum(lengths))
        chunks = tuple(self._chunks([*(one for one in stay if one.state is State.PREFILL), *enter], room))
        started = {chunk.id for chunk in chunks}
        return Plan(
            park=tuple(one.id for one in park),
            resume=tuple(one.id for one in enter if one.id in started and one.state is State.PARKED),
            enter=tuple(one.id for one in enter if one.id in started and one.state is State.WAITING),
            prefill=chunks,
            decode=tuple(one.id for one in running),
            drafts=lengths,
        )

    def commit_moves(self, plan: Plan) -> None:
        """Parks and admissions happen before the step's computing: cells are dropped, places are taken."""
        for id in plan.park:
            self._park(self._sequences[id])
        for id in (*plan.resume, *plan.enter):
            self._seat(self._sequences[id])

    def commit_chunk(self, chunk: Chunk) -> None:
        sequence = self._sequences[chunk.id]
        sequence.computed = chunk.start + chunk.count
        if chunk.completes:
            sequence.state = State.RUNNING
        if chunk.samples:
            sequence.emitted += 1

    def commit_decode(self, drawn: Mapping[str, int]) -> None:
        """`drawn`: how many tokens each row drew."""
        for id, count in drawn.items():
            sequence = self._sequences[id]
            sequence.computed += count
            sequence.emitted += count

    def end_of(self, id: str) -> End | None:
        """Whether the sequence has now reached its own limit or the context's."""
        sequence = self._sequences[id]
        if sequence.emitted >= sequence.max_tokens:
            return End.LENGTH
        return End.CONTEXT if sequence.positions >= self.n_ctx else None

    def counts(self) -> Counts:
        queued = [*self._waiting, *self._parked]
        running = sum(one.state is State.RUNNING for one in self._resident)
        return Counts(
            running=running,
            prefill=len(self._resident) - running,
            waiting=len(self._waiting),
            parked=len(self._parked),
            tokens_used=sum(one.positions for one in self._resident),
            tokens_queued=sum(one.positions for one in queued),
        )

    def states(self) -> Iterator[Sequence]:
        """All open sequences, in no promised order. The caller must not change them."""
        return iter(self._sequences.values())

    def _make_room(self) -> tuple[list[Sequence], list[Sequence]]:
        """Who stays so that one more step of each fits, and who must be parked for it."""
        stay, park = list(self._resident), []
        while len(stay) > 1 and not self.pool.holds(one.positions + 1 for one in stay):
            victim = max(stay, key=lambda one: one.rank)
            stay.remove(victim)
            park.append(victim)
        return stay, park

    def _admissible(self, resident: list[Sequence]) -> Iterator[Sequence]:
        """Those at the head of the line that fit beside the residents: the parked first, in park order."""
        sizes = [one.positions + 1 for one in resident]
        for one in (*self._parked, *self._waiting):
            if len(sizes) >= self.limits.max_concurrent:
                return
            if sizes and not self.pool.holds([*(size + 1 for size in sizes), one.positions + 1]):
                return
            sizes.append(one.positions + 1)
            yield one

    def _draft_lengths(self, running: list[Sequence], resident: list[Sequence], wanted: int) -> tuple[int, ...]:
        """The longest that fit beside everybody's next step: they shrink, to none at last, before anyone is parked or
        kept waiting. No row is given more than it could emit."""
        for longest in range(wanted, 0, -1):
            lengths = {one.id: min(longest, self._most_drafts(one)) for one in running}
            sizes = [one.positions + 1 + lengths.get(one.id, 0) for one in resident]
            captured = len(running) * max(lengths.values(), default=0)
            budget = len(running) + sum(lengths.values())
            if budget <= self.limits.step_tokens and self.pool.holds(sizes, captured):
                return tuple(lengths.values())
        return (0,) * len(running)

    def _most_drafts(self, one: Sequence) -> int:
        """A token is drawn behind the drafts, and all of them may be right."""
        return max(0, min(one.max_tokens - one.emitted, self.n_ctx - one.positions) - 1)

    def _chunks(self, line: list[Sequence], room: int) -> Iterator[Chunk]:
        for one in line:
            chunk = _chunk(one, room)
            if chunk is None:
                return
            room -= chunk.count
            yield chunk

    def _park(self, sequence: Sequence) -> None:
        self._resident.remove(sequence)
        sequence.state, sequence.computed = State.PARKED, 0
        sequence.parks += 1
        sequence.recomputes += 1
        self._parked.append(sequence)

    def _seat(self, sequence: Sequence) -> None:
        if sequence.state is State.PARKED:
            self._parked.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.state = State.PREFILL
        self._resident.append(sequence)


def _chunk(sequence: Sequence, room: int) -> Chunk | None:
    """The next chunk of a prefill within `room` tokens, cut on the grid unless it completes; None: no room."""
    start = sequence.computed if sequence.state is State.PREFILL else 0
    remaining = sequence.prefill_target - start
    if remaining <= room:
        return Chunk(sequence.id, start, remaining, True, sequence.emitted == 0)
    count = (start + room) // GRID_TOKENS * GRID_TOKENS - start
    return Chunk(sequence.id, start, count, False, False) if count > 0 else None
