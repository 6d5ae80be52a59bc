"""Continuous batching as a pure state machine: `plan()` reads, `commit()` moves.

Running rows first, in admission order; prefill in chunks whose total per step is bounded, so that a decode row is
never delayed by more than one chunk; admission strictly in arrival order (priority first). A sequence enters
when its prompt and one step fit, never for prompt + max_tokens. When the next steps of those inside do not fit, even
without drafts, one is parked (its cells copied out, or dropped and computed again later) and nobody fails. While a copy
is under way its room is taken: the others keep to the margin that was left for them, and a row that does not fit for
the moment does not step.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from provider.scheduler.costs import LONGEST_MARGIN_STEPS, Costs
from provider.scheduler.parking import (
    HYSTERESIS_STEPS,
    ROTATE_RECOMPUTED_S,
    ROTATE_S,
    ROTATE_TOKENS,
    ParkRules,
    victim,
)
from provider.scheduler.pool import Pool
from provider.scheduler.sequence import Chunk, End, How, Park, Plan, Sequence, State

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
    """Sequences by state, `moving` those that are being copied out or back; and positions: those that take room, and
    those wanted by who waits or is parked."""

    running: int
    prefill: int
    waiting: int
    parked: int
    moving: int
    tokens_used: int
    tokens_queued: int


class Scheduler:
    """Owner: the engine's loop. Integers in, a Plan out; no tensors, no clock. `costs` is the owner's to keep true."""

    def __init__(self, limits: Limits, pool: Pool, rules: ParkRules | None = None, costs: Costs | None = None) -> None:
        self.limits = limits
        self.pool = pool
        self.rules = rules or ParkRules()
        self.costs = costs or Costs()
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[Sequence] = []
        self._resident: list[Sequence] = []
        self._parked: list[Sequence] = []
        self._moving: list[Sequence] = []
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

    @property
    def moving(self) -> bool:
        """Whether a copy is under way, be it of a sequence that has been removed meanwhile."""
        return bool(self._moving)

    @property
    def parks(self) -> bool:
        """Whether anyone has no room now that had it before."""
        return bool(self._parked or self._moving)

    def remove(self, id: str) -> bool:
        """Forgets a sequence in whatever state it is (cancelled, finished or failed). The room of one that is being
        copied is free when the copy has ended."""
        sequence = self._sequences.pop(id, None)
        if sequence is None:
            return False
        match sequence.state:
            case State.WAITING:
                self._waiting.remove(sequence)
            case State.PARKED:
                self._parked.remove(sequence)
            case State.PREFILL | State.RUNNING:
                self._resident.remove(sequence)
            case State.SAVING | State.RESTORING:
                pass
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
        """Whether all that takes room is within it; not so between a resize and the end of the parks it calls for."""
        return self.pool.holds(one.positions for one in chain(self._resident, self._moving))

    def plan(self, drafts: int = 0, now_s: float = 0.0) -> Plan:
        """The next step, with up to `drafts` guesses verified in each row. Changes nothing: two calls in a row give
        the same plan. Empty when there is work only while copies are under way or parks are held."""
        stay, leave = self._make_room()
        enter = [] if leave else list(self._admissible(stay, now_s))
        if self._parked and not leave and not enter:
            stay, leave = self._rotate(stay, now_s)
        park = tuple(self._leaving(leave))
        restored = [one for one in enter if _is_saved(one)]
        enter = [one for one in enter if not _is_saved(one)]
        taken = [*self._taken(), *(self._sequences[one.id].positions for one in park if one.how is How.SAVED)]
        taken += [one.positions + 1 for one in restored]
        inside = [*stay, *enter]
        stepping = self._stepping(inside, taken)
        taken += [one.positions for one in inside if one not in stepping] if len(stepping) < len(inside) else []
        running = [one for one in stepping if one.state is State.RUNNING][: self.limits.step_tokens]
        lengths = self._draft_lengths(running, stepping, taken, drafts)
        room = min(self.limits.chunk_tokens, self.limits.step_tokens - len(running) - sum(lengths))
        chunks = tuple(self._chunks([one for one in stepping if one.state is not State.RUNNING], room))
        started = {chunk.id for chunk in chunks}
        return Plan(
            park=park,
            restore=tuple(one.id for one in restored),
            resume=tuple(one.id for one in enter if one.id in started and one.state is State.PARKED),
            enter=tuple(one.id for one in enter if one.id in started and one.state is State.WAITING),
            prefill=chunks,
            decode=tuple(one.id for one in running),
            drafts=lengths,
        )

    def next_release_s(self) -> float | None:
        """When the first of the parks that are held may end."""
        return min((one.held_until_s for one in self._parked), default=None)

    def commit_moves(self, plan: Plan, now_s: float = 0.0, failed: Collection[str] = ()) -> None:
        """Parks and admissions happen before the step's computing: cells are handed over or dropped, places are taken.
        `failed`: of those to be saved, whose cells could not even be handed over, and are gone."""
        for park in plan.park:
            self._park(self._sequences[park.id], How.DROPPED if park.id in failed else park.how, now_s)
        for id in plan.restore:
            one = self._sequences[id]
            self._parked.remove(one)
            self._moving.append(one)
            one.state = State.RESTORING
        for id in (*plan.resume, *plan.enter):
            self._seat(self._sequences[id], now_s)

    def saved(self, id: str, how: How) -> None:
        """The copy out has ended; `how` DROPPED: in vain. Either way its room is free."""
        one = self._arrived(id, State.SAVING)
        if self._sequences.get(id) is one:
            self._settle(one, how)

    def restored(self, id: str, now_s: float = 0.0) -> None:
        """The copy back has ended, and the sequence goes on where it stopped."""
        one = self._arrived(id, State.RESTORING)
        if self._sequences.get(id) is one:
            one.state = State.RUNNING if one.computed >= one.prefill_target else State.PREFILL
            self._welcome(one, now_s)

    def lost(self, id: str) -> None:
        """The copy back has failed: it is computed again, at its old place in line."""
        one = self._arrived(id, State.RESTORING)
        if self._sequences.get(id) is one:
            self._settle(one, How.DROPPED)

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
        moving = [one for one in self._moving if self._sequences.get(one.id) is one]
        return Counts(
            running=running,
            prefill=len(self._resident) - running,
            waiting=len(self._waiting),
            parked=len(self._parked),
            moving=len(moving),
            tokens_used=sum(one.positions for one in (*self._resident, *moving)),
            tokens_queued=sum(one.positions for one in queued),
        )

    def states(self) -> Iterator[Sequence]:
        """All open sequences, in no promised order. The caller must not change them."""
        return iter(self._sequences.values())

    def _need(self, one: Sequence, ahead: int) -> int:
        """Positions after the next step and `ahead` more, as far as the sequence goes at all."""
        left = min(one.max_tokens - one.emitted, self.n_ctx - one.positions)
        return one.positions + min(1 + ahead, max(1, left))

    def _taken(self) -> list[int]:
        """Positions that copies under way take, out of the batch as they are."""
        return [one.positions + (one.state is State.RESTORING) for one in self._moving]

    def _coming(self) -> list[int]:
        return [one.positions + 1 for one in self._moving if one.state is State.RESTORING]

    def _make_room(self) -> tuple[list[Sequence], list[Sequence]]:
        """Who stays, and who must be parked so that the next step of each fits, and as many more as it makes while the
        copy takes. Copies under way count as ended."""
        leave = [one for one in self._resident if one.state is State.RUNNING and self.rules.forces(one)]
        stay = [one for one in self._resident if one not in leave] if leave else list(self._resident)
        if self._holds(stay, LONGEST_MARGIN_STEPS):
            return stay, leave
        while stay and len(stay) + len(self._coming()) > 1:
            weakest = victim(stay, self.rules.policy, self._lost_s)
            if self._holds(stay, self._margin_steps(weakest)):
                break
            stay.remove(weakest)
            leave.append(weakest)
        return stay, leave

    def _holds(self, stay: Iterable[Sequence], ahead: int) -> bool:
        return self.pool.holds([*(self._need(one, ahead) for one in stay), *self._coming()])

    def _saved_bytes(self, one: Sequence) -> int:
        return self.pool.sequence_bytes(one.computed)

    def _savable(self, one: Sequence) -> bool:
        return one.computed > 0 and self.costs.takes(self._saved_bytes(one))

    def _lost_s(self, one: Sequence) -> float:
        if self._savable(one):
            return self.costs.round_trip_s(self._saved_bytes(one))
        return self.costs.recompute_s(one.computed)

    def _margin_steps(self, one: Sequence) -> int:
        return self.costs.steps(self.costs.save_s(self._saved_bytes(one))) if self._savable(one) else 0

    def _leaving(self, leave: Iterable[Sequence]) -> Iterator[Park]:
        """Saved, as far as the tiers take them."""
        left = self.costs.savable_bytes
        for one in leave:
            size_bytes = self._saved_bytes(one)
            if left is not None and one.computed > 0 and size_bytes <= left:
                left -= size_bytes
                yield Park(one.id, How.SAVED)
            else:
                yield Park(one.id, How.DROPPED)

    def _return_steps(self, one: Sequence) -> int:
        """How many steps of everybody must fit beside its return: those made meanwhile, and some more."""
        if _is_saved(one):
            return HYSTERESIS_STEPS + self.costs.steps(self.costs.restore_s(self._saved_bytes(one)))
        return HYSTERESIS_STEPS + min(LONGEST_MARGIN_STEPS, -(-one.prefill_target // self.limits.chunk_tokens))

    def _line(self, now_s: float) -> Iterator[Sequence]:
        """The parked first, by the time of their park, then the others as they came. Who is held is not in it."""
        yield from (one for one in self._parked if one.held_until_s <= now_s)
        yield from self._waiting

    def _admissible(self, stay: list[Sequence], now_s: float) -> Iterator[Sequence]:
        """Those at the head of the line that fit beside all who have room."""
        if not self._parked and not self._waiting:
            return
        inside, taken = list(stay), self._taken()
        places = len(stay) + len(self._coming())
        for one in self._line(now_s):
            if places >= self.limits.max_concurrent:
                return
            ahead = self._return_steps(one) if one.state is State.PARKED else 1
            wanted = self._need(one, ahead if one.state is State.PARKED else 0)
            if (inside or taken) and not self.pool.holds([*(self._need(it, ahead) for it in inside), *taken, wanted]):
                return
            inside.append(one)
            places += 1
            yield one

    def _rotate(self, stay: list[Sequence], now_s: float) -> tuple[list[Sequence], list[Sequence]]:
        """Who stays and who gives its place to the head of the parked, once that has waited long enough."""
        head = next((one for one in self._line(now_s) if one.state is State.PARKED), None)
        if head is None or self._moving:
            return stay, []
        patience_s = ROTATE_S if _is_saved(head) else ROTATE_RECOMPUTED_S
        if now_s - max(head.parked_s, head.held_until_s) < patience_s:
            return stay, []
        lets_in = [
            one for one in stay if self._may_turn(one, head, patience_s, now_s) and self._lets_in(one, head, stay)
        ]
        if not lets_in:
            return stay, []
        leaves = victim(lets_in, self.rules.policy, self._lost_s)
        return [one for one in stay if one is not leaves], [leaves]

    def _may_turn(self, one: Sequence, head: Sequence, patience_s: float, now_s: float) -> bool:
        """It has had its turn, is no more entitled than the head, and both states have a place: the head's where it is,
        its own beside it."""
        if one.state is not State.RUNNING or one.priority > head.priority:
            return False
        had_its_turn = now_s - one.came_s >= patience_s and one.emitted - one.came_with >= ROTATE_TOKENS
        return had_its_turn and (self.costs.savable_bytes is None or self._savable(one))

    def _lets_in(self, leaves: Sequence, head: Sequence, stay: list[Sequence]) -> bool:
        others, ahead = [one for one in stay if one is not leaves], self._return_steps(head)
        if not others:
            return True
        sizes = [*(self._need(one, ahead) for one in others), self._need(head, ahead)]
        return len(others) < self.limits.max_concurrent and self.pool.holds(sizes)

    def _stepping(self, inside: list[Sequence], taken: list[int]) -> list[Sequence]:
        """Who can take a step beside the copies under way, in admission order; without any, everybody can."""
        if not taken:
            return inside
        sizes = [one.positions for one in inside]
        stepping = []
        for place, one in enumerate(inside):
            sizes[place] += 1
            if self.pool.holds([*sizes, *taken]):
                stepping.append(one)
            else:
                sizes[place] -= 1
        return stepping

    def _draft_lengths(
        self, running: list[Sequence], stepping: list[Sequence], taken: list[int], wanted: int
    ) -> tuple[int, ...]:
        """The longest that fit beside everybody's next step: they shrink, to none at last, before anyone is parked or
        kept waiting. No row is given more than it could emit."""
        for longest in range(wanted, 0, -1):
            lengths = {one.id: min(longest, self._most_drafts(one)) for one in running}
            sizes = [one.positions + 1 + lengths.get(one.id, 0) for one in stepping]
            captured = len(running) * max(lengths.values(), default=0)
            budget = len(running) + sum(lengths.values())
            if budget <= self.limits.step_tokens and self.pool.holds([*sizes, *taken], captured):
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

    def _park(self, one: Sequence, how: How, now_s: float) -> None:
        self._resident.remove(one)
        one.parks += 1
        one.parked_s = one.held_until_s = now_s
        if self.rules.forces(one):
            one.forced_at = one.emitted
            one.held_until_s = now_s + self.rules.hold_s
        if how is How.SAVED:
            one.state = State.SAVING
            self._moving.append(one)
        else:
            self._settle(one, how)

    def _settle(self, one: Sequence, how: How) -> None:
        """Parked, with its cells gone from here."""
        one.state, one.how = State.PARKED, how
        if how is How.DROPPED and one.computed:
            one.computed = 0
            one.recomputes += 1
        insort(self._parked, one, key=lambda it: it.parked_s)

    def _arrived(self, id: str, state: State) -> Sequence:
        """The first copy that was begun for this id: a removed sequence's comes before its successor's."""
        one = next(it for it in self._moving if it.id == id and it.state is state)
        self._moving.remove(one)
        return one

    def _seat(self, one: Sequence, now_s: float) -> None:
        (self._parked if one.state is State.PARKED else self._waiting).remove(one)
        one.state = State.PREFILL
        self._welcome(one, now_s)

    def _welcome(self, one: Sequence, now_s: float) -> None:
        one.came_s, one.came_with = now_s, one.emitted
        self._resident.append(one)


def _is_saved(one: Sequence) -> bool:
    return one.state is State.PARKED and one.how is How.SAVED


def _chunk(sequence: Sequence, room: int) -> Chunk | None:
    """The next chunk of a prefill within `room` tokens, cut on the grid unless it completes; None: no room."""
    start = sequence.computed if sequence.state is State.PREFILL else 0
    remaining = sequence.prefill_target - start
    if remaining <= room:
        return Chunk(sequence.id, start, remaining, True, sequence.emitted == 0)
    count = (start + room) // GRID_TOKENS * GRID_TOKENS - start
    return Chunk(sequence.id, start, count, False, False) if count > 0 else None
