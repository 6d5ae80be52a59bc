"""The loop of one model: inbox -> plan -> backend -> commit -> events.

Synchronous, and owned by one thread; everything outside talks to it through `submit` and `cancel` between steps,
and through the events a step emits. A step is run in parts (the moves, each prefill chunk, the decode rows), so
that a token leaves as soon as it is sampled and a failing part ends only the requests that were in it.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from provider.api import wire
from provider.backends.base import Backend, Row, Run, Told
from provider.errors import GrammarError
from provider.generation import (
    Delta,
    Entered,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationRequest,
    Notice,
    Sampling,
)
from provider.mtp.controller import Depth, FixedDepth
from provider.mtp.tally import Tally
from provider.parking.mover import Lane
from provider.rates import Rates
from provider.scheduler.scheduler import Scheduler
from provider.scheduler.sequence import Chunk, End, How, Park, Plan
from provider.text import Decode, TextStream

log = logging.getLogger(__name__)

POLL_S = 0.005
"""Between two looks at copies under way, while nobody decodes."""
IDLE_S = 1.0

Emit = Callable[[Sequence[Event]], None]
Part = Callable[[], list[Event]]


@dataclass(slots=True)
class Generation:
    """An open request: its text so far, every token it has drawn, and what became of the drafts."""

    request: GenerationRequest
    text: TextStream
    stop_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    parked: bool = False
    """Its client has been told so, and not yet that it decodes again."""
    told_recomputes: int = 0


@dataclass(slots=True)
class GrantState:
    """The last grant asked for, by its epoch. `settling`: what lies beyond it is still being parked."""

    epoch: int = 0
    settling: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """`drawn`: the tokens of its decode rows, those behind a stop included."""

    plan: Plan
    events: list[Event]
    drawn: int


class AccountingError(Exception):
    """The scheduler's books do not close: a fault of ours that must not go unseen."""


class Engine:
    """Owner of the scheduler and the backend of one model."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        decode: Decode,
        depth: Depth | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`depth` decides how many drafts each step has; without it, none has any."""
        self.scheduler = scheduler
        self.backend = backend
        self.tally = Tally()
        self.rates = Rates()
        self.depth = depth or FixedDepth()
        self._now = now
        self._paced_at: float | None = None
        self._drawn = 0
        self._decode = decode
        self._generations: dict[str, Generation] = {}
        self._grant = GrantState()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do or to wait for: a copy that nobody needs any more is seen to its end."""
        return bool(self._generations) or self.scheduler.moving

    def idle_s(self) -> float:
        """After a step whose plan was empty: how long until one may not be."""
        if self.scheduler.moving:
            return POLL_S
        held_until_s = self.scheduler.next_release_s()
        return IDLE_S if held_until_s is None else min(IDLE_S, max(POLL_S, held_until_s - self._now()))

    def submit(self, request: GenerationRequest) -> list[Event]:
        """Takes a request in; the events say so if it can never run."""
        n_prompt = len(request.prompt)
        if request.request_id in self._generations:
            return [Failed(request.request_id, wire.internal_error("the request id is already in use"))]
        if n_prompt == 0:
            return [Failed(request.request_id, wire.invalid_request("the prompt is empty", "prompt"))]
        if n_prompt >= self.scheduler.n_ctx:
            return [Failed(request.request_id, wire.context_exceeded(n_prompt, self.scheduler.n_ctx))]
        self.scheduler.add(request.request_id, n_prompt, request.max_tokens, request.priority)
        self._generations[request.request_id] = Generation(
            request,
            TextStream(self._decode, request.stop, request.skip_special_tokens, request.reading),
            frozenset(request.stop_token_ids),
        )
        return []

    def cancel(self, id: str) -> None:
        """Ends a sequence in whatever state it is; unknown ids are ignored (it may just have finished)."""
        if self._generations.pop(id, None) is not None:
            self.scheduler.remove(id)
            self.backend.release(id)

    def hold(self, id: str, held: bool) -> None:
        """Parks a sequence whose reader is away, or lets it go on. Unknown ids are ignored."""
        self.scheduler.hold(id, held)

    def grant(self, epoch: int, kv_pool_bytes: int) -> bool | None:
        """Takes on another room; False when an open sequence could not end in it, None for an epoch that has passed."""
        if epoch <= self._grant.epoch:
            return None
        if not self.scheduler.resize(self.scheduler.pool.with_bytes(kv_pool_bytes)):
            self._grant.epoch = epoch
            return False
        self._grant = GrantState(epoch, settling=True)
        return True

    def settled_grant(self) -> int | None:
        """The epoch of a grant that has just come into force: told once."""
        if not self._grant.settling or not self.scheduler.fits:
            return None
        self._grant.settling = False
        self.backend.clear_cache()
        return self._grant.epoch

    def step(self, emit: Emit) -> Step:
        """One step in parts: moves, decode rows, prefill chunks. Each part's events are emitted at once, so that no
        token waits for a neighbour's prefill; the last part's are returned, to leave with the step's figures."""
        began_s = self._now()
        self._collect(began_s)
        self.scheduler.costs = self.rates.costs(self.backend.savable_bytes)
        plan = self.scheduler.plan(self._drafts(), began_s)
        events: list[Event] = []
        self._drawn = 0
        for ids, part in self._parts(plan):
            if events:
                emit(events)
            events = self._guard(ids, part)
        self.rates.note_step(plan, self._now() - began_s)
        if not self.busy:
            self._check_books()
        return Step(plan, events, self._drawn)

    def _drafts(self) -> int:
        """For each row of the next step."""
        return 0 if self.backend.draft_failure is not None else self.depth.depth(self.scheduler.running)

    def _collect(self, now_s: float) -> None:
        """What has become of the copies."""
        for landing in self.backend.landings():
            self.rates.note_copy(landing)
            if landing.failure is not None:
                log.warning("park_copy_failed lane=%s reason=%s", landing.lane.value, landing.failure)
            match landing.lane:
                case Lane.SAVE:
                    self.scheduler.saved(landing.id, How.SAVED if landing.failure is None else How.DROPPED)
                case Lane.RESTORE if landing.failure is None:
                    self.scheduler.restored(landing.id, now_s)
                case Lane.RESTORE:
                    self.scheduler.lost(landing.id)

    def _check_books(self) -> None:
        """Without a request nothing may be accounted for: what is left would be lost room for good."""
        counts = self.scheduler.counts()
        if counts.tokens_used or counts.tokens_queued or self.scheduler.open or self.scheduler.moving:
            raise AccountingError(f"nobody is here, and yet {counts}")

    def _parts(self, plan: Plan) -> Iterator[tuple[Sequence[str], Part]]:
        if plan.moves:
            coming = plan.restore + plan.resume + plan.enter
            yield [*(one.id for one in plan.park), *coming], partial(self._move, plan)
        for id in plan.resume + plan.enter:
            yield (id,), partial(self._open, id)
        if plan.decode:
            yield plan.decode, partial(self._decode_rows, plan)
        for chunk in plan.prefill:
            yield (chunk.id,), partial(self._prefill, chunk)

    def _guard(self, ids: Sequence[str], part: Part) -> list[Event]:
        """Runs one part of a step; an exception in it ends its requests with a typed error, and nothing else."""
        try:
            return part()
        except Exception as error:
            log.exception("engine_step_failed requests=%d", len(ids))
            failure = wire.internal_error(f"The engine failed: {error}", "engine_error")
            return [self._fail(id, failure) for id in ids]

    def _move(self, plan: Plan) -> list[Event]:
        failed = [one.id for one in plan.park if not self._hand_over(one)]
        lost = [id for id in plan.restore if not self._call_back(id)]
        self.scheduler.commit_moves(plan, self._now(), failed)
        for id in lost:
            self.scheduler.lost(id)
        if plan.enter:
            self.depth.joined()
        return [*self._tell_parked(plan), *(Entered(id) for id in plan.enter)]

    def _open(self, id: str) -> list[Event]:
        one = self._generations[id]
        try:
            self.backend.open(id, one.request.sampling, one.request.prompt, one.tokens)
        except GrammarError as error:
            return [self._fail(id, wire.grammar_failed(str(error)))]
        return []

    def _call_back(self, id: str) -> bool:
        """Begins to restore; False when that cannot be, and the sequence's copy is gone."""
        try:
            self.backend.restore(id)
            return True
        except Exception:
            log.exception("restore_not_begun")
        self.backend.release(id)
        return False

    def _hand_over(self, park: Park) -> bool:
        """Gives a sequence's state to be copied, or drops it; False when it was to be copied and had to be dropped."""
        if park.how is How.SAVED:
            try:
                self.backend.park(park.id)
                return True
            except Exception:
                log.exception("park_not_begun")
        self.backend.release(park.id)
        return park.how is How.DROPPED

    def _tell_parked(self, plan: Plan) -> Iterator[Event]:
        for park in plan.park:
            one = self._generations[park.id]
            if not one.parked:
                one.parked = True
                yield Notice(park.id, "preempted")

    def _prefill(self, chunk: Chunk) -> list[Event]:
        one = self._generations.get(chunk.id)
        if one is None:  # its opening failed earlier in this step
            return []
        known = one.request.prompt + one.tokens[:-1]
        position = 0 if chunk.samples else None
        token = self.backend.prefill(chunk.id, known[chunk.start : chunk.start + chunk.count], position)
        self.scheduler.commit_chunk(chunk)
        if token is not None:
            return [*self._welcome(chunk.id), *self._take(chunk.id, Run([token]))]
        return []

    def _decode_rows(self, plan: Plan) -> list[Event]:
        rows = [self._row(id, drafts) for id, drafts in zip(plan.decode, plan.drafts, strict=True)]
        replayed = {row.id for row in rows if row.known is not None}
        # With a chunk to come, the next decode step would be computed and then wait behind it, unsent.
        runs = dict(zip(plan.decode, self.backend.decode(rows, ahead=not plan.prefill), strict=True))
        self.scheduler.commit_decode({id: len(run.tokens) for id, run in runs.items()})
        drew = {id: run for id, run in runs.items() if id not in replayed}
        self._drawn = sum(len(run.tokens) for run in drew.values())
        self._pace(plan, runs.values(), bool(replayed))
        return [event for id, run in drew.items() for event in (*self._welcome(id), *self._take(id, run))]

    def _welcome(self, id: str) -> list[Event]:
        """To a client whose chat decodes again."""
        one, sequence = self._generations[id], self.scheduler.get(id)
        if not one.parked:
            return []
        assert sequence is not None
        again = sequence.recomputes > one.told_recomputes
        one.parked, one.told_recomputes = False, sequence.recomputes
        return [Notice(id, "resumed"), *([Notice(id, "recomputed")] if again else [])]

    def _row(self, id: str, drafts: int) -> Row:
        tokens, sequence = self._generations[id].tokens, self.scheduler.get(id)
        assert sequence is not None
        if sequence.replaying:
            position = sequence.computed - sequence.prompt_tokens + 1
            return Row(id, tokens[position - 1], position, known=tokens[position])
        return Row(id, tokens[-1], len(tokens), drafts)

    def _pace(self, plan: Plan, runs: Collection[Run], replays: bool) -> None:
        """Tells the depth's owner how long a step took that did nothing but decode, and followed such a one."""
        began, self._paced_at = self._paced_at, None
        if plan.prefill or plan.park or plan.enter or plan.resume or replays:
            return
        self._paced_at = self._now()
        if began is not None:
            deepest = max(run.drafted for run in runs)
            self.depth.note(len(runs), deepest, self._drawn, self._paced_at - began)

    def _take(self, id: str, run: Run) -> list[Event]:
        """The new tokens of one sequence -> their text, and its end if one of them was the last. What a run has beyond
        a stop was never asked for: it is neither counted nor told."""
        one = self._generations[id]
        told = self._told(id, one.request.sampling)
        if told.failure is not None:
            return [self._fail(id, wire.grammar_failed(told.failure))]
        stop_at = next((place for place, token in enumerate(run.tokens) if token in one.stop_ids), None)
        tokens = run.tokens[:stop_at]
        pushed = one.text.push(tokens)
        if pushed.stopped_at is not None:
            tokens = tokens[: pushed.stopped_at]
            self._note(one, run, tokens)
            return self._finish(id, _delta(id, tokens, pushed.text, told), "stop")
        if stop_at is not None:
            self._note(one, run, run.tokens[: stop_at + 1])
            return self._finish(id, _delta(id, tokens, pushed.text + one.text.finish(), told), "stop")
        self._note(one, run, tokens)
        match self.scheduler.end_of(id):
            case None:
                return [_delta(id, tokens, pushed.text, told)]
            case end:
                last = _delta(id, tokens, pushed.text + one.text.finish(cut=True), told)
                if one.text.stopped_by is not None:
                    return self._finish(id, last, "stop")
                return self._finish(id, last, "length") if end is End.LENGTH else [last, self._outgrown(id)]

    def _told(self, id: str, sampling: Sampling) -> Told:
        """Asked for only where there is something to tell."""
        asks = sampling.grammar is not None or sampling.logprobs is not None
        return self.backend.told(id) if asks else Told()

    def _note(self, one: Generation, run: Run, emitted: Sequence[int]) -> None:
        one.tokens += emitted
        one.drafted += run.drafted
        one.accepted += min(run.accepted, len(emitted))
        self.tally.note(run.drafted, run.accepted)

    def _finish(self, id: str, last: Delta, reason: FinishReason) -> list[Event]:
        one, sequence = self._generations[id], self.scheduler.get(id)
        assert sequence is not None
        finished = Finished(
            id,
            reason,
            sequence.prompt_tokens,
            len(one.tokens),
            sequence.parks,
            sequence.recomputes,
            one.accepted,
            one.drafted - one.accepted,
            one.text.stopped_by,
        )
        self.cancel(id)
        return [last, finished] if last.token_ids or last.text else [finished]

    def _outgrown(self, id: str) -> Failed:
        sequence, n_ctx = self.scheduler.get(id), self.scheduler.n_ctx
        assert sequence is not None
        message = (
            f"The chat has grown to {sequence.positions} tokens and the context holds {n_ctx}: lower max_tokens, "
            "shorten the prompt, or serve the model with a larger --context-length or --kv-pool-tokens."
        )
        return self._fail(id, wire.context_exceeded(sequence.prompt_tokens, n_ctx, message))

    def _fail(self, id: str, failure: wire.Failure) -> Failed:
        self.cancel(id)
        return Failed(id, failure)


def _delta(id: str, tokens: list[int], text: str, told: Told) -> Delta:
    return Delta(id, tokens, text, None if told.logprobs is None else list(told.logprobs[: len(tokens)]))
