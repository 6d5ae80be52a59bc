"""Continuous batching as a pure state machine: `plan()` reads, `commit()` moves.

Running rows first, in admission order; prefill in chunks whose total per step is bounded, so that a decode row is
never delayed by more than one chunk; admission strictly in arrival order (priority first). A sequence enters
when its prompt and one step fit, never for prompt + max_tokens. When the next steps of those inside do not fit, even
without drafts, one is parked (its cells copied out, or dropped and computed again later) and nobody fails. While a copy
is under way its room is taken: the others keep to the margin that was left for them, and a row that does not fit for
the moment does not step.
"""

from bisect import insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from provider.scheduler.costs import Costs
from provider.scheduler.parking import ParkRules
from provider.scheduler.planner import Limits, Planner
from provider.scheduler.pool import Pool
from provider.scheduler.sequence import Chunk, End, How, Plan, Sequence, State

__all__ = ["Counts", "Limits", "Scheduler"]


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
        self.parks = self.recomputes = 0
        """Of all sequences so far; each counts its own besides."""
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
        sequence.replays = self.limits.prefilling.replays
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

    def hold(self, id: str, held: bool) -> None:
        """From the next plan on the sequence is parked, if it has room, and not let in; until told otherwise. Unknown
        ids are ignored (it may just have finished)."""
        sequence = self._sequences.get(id)
        if sequence is not None:
            sequence.held = held

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
        books = (self._waiting, self._resident, self._parked, self._moving)
        return Planner(self.limits, self.pool, self.rules, self.costs, self.n_ctx, *books).plan(drafts, now_s)

    def next_release_s(self) -> float | None:
        """When the first of the parks that end by themselves may end."""
        return min((one.held_until_s for one in self._parked if not one.held), default=None)

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
        """`drawn`: how many tokens each row drew; 1 of one that replays, whose token has been counted before."""
        for id, count in drawn.items():
            sequence = self._sequences[id]
            sequence.emitted += 0 if sequence.replaying else count
            sequence.computed += count

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

    def _park(self, one: Sequence, how: How, now_s: float) -> None:
        self._resident.remove(one)
        one.parks += 1
        self.parks += 1
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
            self.recomputes += 1
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
