"""What the next step does: who is parked, who comes in, who steps, with how many drafts and which chunks.

Pure: it reads the books as they stand, and changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
from provider.scheduler.prefilling import GRID_TOKENS, SHARED, Prefilling
from provider.scheduler.sequence import Chunk, How, Park, Plan, Sequence, State

STEP_TOKENS = 2048
CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Limits:
    max_concurrent: int
    n_ctx: int
    step_tokens: int = STEP_TOKENS
    chunk_tokens: int = CHUNK_TOKENS
    prefilling: Prefilling = SHARED

    def __post_init__(self) -> None:
        if self.max_concurrent < 1 or self.chunk_tokens < GRID_TOKENS or self.decode_tokens < 1:
            raise ValueError(f"no progress is possible under {self}")

    @property
    def decode_tokens(self) -> int:
        """What the rows of a step may take of it, drafts included."""
        return self.step_tokens - self.chunk_tokens if self.prefilling.waits else self.step_tokens


@dataclass(frozen=True, slots=True)
class Planner:
    """The books at one moment, each line in its own order (Scheduler). `n_ctx`: positions one sequence can have."""

    limits: Limits
    pool: Pool
    rules: ParkRules
    costs: Costs
    n_ctx: int
    waiting: list[Sequence]
    resident: list[Sequence]
    parked: list[Sequence]
    moving: list[Sequence]

    def plan(self, drafts: int, now_s: float) -> Plan:
        stay, leave = self._make_room()
        enter = [] if leave else list(self._admissible(stay, now_s))
        if self.parked and not leave and not enter:
            stay, leave = self._rotate(stay, now_s)
        park = tuple(self._leaving(leave))
        restored = [one for one in enter if _is_saved(one)]
        enter = [one for one in enter if not _is_saved(one)]
        taken = [*self._taken(), *(one.positions for one, how in zip(leave, park, strict=True) if how.how is How.SAVED)]
        taken += [one.positions + 1 for one in restored]
        inside = [*stay, *enter]
        stepping = self._stepping(inside, taken)
        taken += [one.positions for one in inside if one not in stepping] if len(stepping) < len(inside) else []
        running = [one for one in stepping if one.state is State.RUNNING][: self.limits.decode_tokens]
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

    def _need(self, one: Sequence, ahead: int) -> int:
        """Positions after the next step and `ahead` more, as far as the sequence goes at all."""
        left = min(one.max_tokens - one.emitted, self.n_ctx - one.positions)
        return one.positions + min(1 + ahead, max(1, left))

    def _taken(self) -> list[int]:
        """Positions that copies under way take, out of the batch as they are."""
        return [one.positions + (one.state is State.RESTORING) for one in self.moving]

    def _coming(self) -> list[int]:
        return [one.positions + 1 for one in self.moving if one.state is State.RESTORING]

    def _make_room(self) -> tuple[list[Sequence], list[Sequence]]:
        """Who stays, and who must be parked so that the next step of each fits, and as many more as it makes while the
        copy takes. Copies under way count as ended."""
        leave = [one for one in self.resident if one.held or self._forced(one)]
        stay = [one for one in self.resident if one not in leave] if leave else list(self.resident)
        if self._holds(stay, LONGEST_MARGIN_STEPS):
            return stay, leave
        while stay and len(stay) + len(self._coming()) > 1:
            weakest = victim(stay, self.rules.policy, self._lost_s)
            if self._holds(stay, self._margin_steps(weakest)):
                break
            stay.remove(weakest)
            leave.append(weakest)
        return stay, leave

    def _forced(self, one: Sequence) -> bool:
        return one.state is State.RUNNING and self.rules.forces(one)

    def _holds(self, stay: Iterable[Sequence], ahead: int) -> bool:
        return self.pool.holds([*(self._need(one, ahead) for one in stay), *self._coming()])

    def _saved_bytes(self, one: Sequence) -> int:
        return self.pool.sequence_bytes(one.computed)

    def _savable(self, one: Sequence) -> bool:
        return one.computed > 0 and self.costs.takes(self._saved_bytes(one))

    def _lost_s(self, one: Sequence) -> float:
        if self._savable(one):
            return self.costs.round_trip_s(self._saved_bytes(one))
        replayed = max(0, one.computed - one.prefill_target)
        return self.costs.recompute_s(one.computed - replayed) + self.costs.replay_s(replayed)

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
        replayed = max(0, one.positions - 1 - one.prefill_target)
        steps = -(-one.prefill_target // self.limits.chunk_tokens) + replayed
        return HYSTERESIS_STEPS + min(LONGEST_MARGIN_STEPS, steps)

    def _line(self, now_s: float) -> Iterator[Sequence]:
        """The parked first, by the time of their park, then the others as they came. Who is held is not in it."""
        yield from (one for one in self.parked if not one.held and one.held_until_s <= now_s)
        yield from (one for one in self.waiting if not one.held)

    def _admissible(self, stay: list[Sequence], now_s: float) -> Iterator[Sequence]:
        """Those at the head of the line that fit beside all who have room."""
        if not self.parked and not self.waiting:
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
        if head is None or self.moving:
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
            captured = (len(running) + self.pool.padding_states) * max(lengths.values(), default=0)
            budget = len(running) + sum(lengths.values())
            if budget <= self.limits.decode_tokens and self.pool.holds([*sizes, *taken], captured):
                return tuple(lengths.values())
        return (0,) * len(running)

    def _most_drafts(self, one: Sequence) -> int:
        """A token is drawn behind the drafts, and all of them may be right. Nothing is drawn twice."""
        return 0 if one.replaying else max(0, min(one.max_tokens - one.emitted, self.n_ctx - one.positions) - 1)

    def _chunks(self, line: list[Sequence], room: int) -> Iterator[Chunk]:
        for one in line:
            chunk = self._chunk(one, room)
            if chunk is None:
                return
            room -= chunk.count
            yield chunk

    def _chunk(self, one: Sequence, room: int) -> Chunk | None:
        """The next chunk of a prefill within `room` tokens, cut on the grid unless it completes; None: no room."""
        start = one.computed if one.state is State.PREFILL else 0
        remaining = one.prefill_target - start
        count = self.limits.prefilling.cut(start, remaining, room, self.limits.chunk_tokens)
        if count == 0:
            return None
        return Chunk(one.id, start, count, count == remaining, count == remaining and one.emitted == 0)


def _is_saved(one: Sequence) -> bool:
    return one.state is State.PARKED and one.how is How.SAVED
