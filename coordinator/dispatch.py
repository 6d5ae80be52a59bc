"""A job's way through a provider: choose, hold, send, relay, settle; again elsewhere while nothing was delivered."""

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, assert_never

from coordinator import blame, log, refusals
from coordinator.admission import Admission
from coordinator.affinity import Affinities, conversation_of
from coordinator.alarm import alarm
from coordinator.breaker import Breaker, BreakerStates
from coordinator.config import MOST_WAITING, Timings
from coordinator.decisions import Decisions
from coordinator.endings import broken, failed
from coordinator.estimates import Estimates, Tokens, most_tokens, prompts_of
from coordinator.experience import Experience
from coordinator.fleet import Hold
from coordinator.hub import Hub
from coordinator.inbox import Broken, Frame, Inbox
from coordinator.job import Done, Job, Progress, outcome
from coordinator.lease import Lease
from coordinator.patience import Patience
from coordinator.routing import Chosen, Reason, Refused, Request, gated, route
from coordinator.store.records import MemoryTables, Usage
from provider.api.events import COUNT_TOKENS, unnameable
from provider.api.wire import Failure, internal_error, nested_too_deeply
from provider.protocol import (
    MAX_FRAME_BYTES,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
    InferenceRequest,
    NoticeKind,
    encode,
)

MAX_ATTEMPTS = 3
NO_PROMPT = Tokens(likely=1, least=0)
"""Of what is counted only: no context has to hold it."""
STALLED_CLIENT_S = 30
"""How long one write to a client may take; then it counts as gone."""
CAPACITY = frozenset({429, 503, 507})
"""With one of these a provider says that it lacks capacity,"""
NO_CAPACITY_MATTER = frozenset({"draining"})
"""unless it gives one of these codes."""


class Client(Protocol):
    """Where a job's chunks go. May raise TimeoutError when it does not read."""

    async def chunk(self, data: dict[str, Any]) -> None: ...
    async def notice(self, kind: NoticeKind) -> None: ...


class Accounts(Protocol):
    """Who keeps account of what each job uses (coordinator.accounts)."""

    def sent(self, job: Job, progress: Progress) -> None: ...
    def ended(self, usage: Usage) -> None: ...


class Dispatcher:
    """Owned by the event loop; each job is run by the task of its request, whose cancellation cancels the job."""

    def __init__(
        self,
        hub: Hub,
        timings: Timings,
        accounts: Accounts,
        tables: Callable[[], MemoryTables],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        rng: random.Random,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._hub = hub
        self._metrics = hub.metrics
        self._experience = Experience(hub.views, hub.metrics, clock)
        self._timings = timings
        self._accounts = accounts
        self._tables = tables
        self.estimates = Estimates()
        self.affinities = Affinities()
        self.decisions = Decisions(hub.metrics.registry, clock, self._gated, lambda: hub.views)
        self._clock = clock
        self._now = now
        self._rng = rng
        self.admission = Admission(hub.views, self.route, tables, timings, most_waiting, hub.metrics, clock)
        hub.views.on_change(self.admission.changed)
        self._metrics.registry.register(BreakerStates(self._breakers, clock))
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    async def idle(self) -> None:
        """Returns when nothing runs."""
        await self._idle.wait()

    async def run(self, job: Job, client: Client) -> Done | Failure:
        """To the end, whichever it is; the job is recorded once, however it ends."""
        if self.draining:
            return refusals.stopping()
        progress = Progress()
        result: Done | Failure | None = None
        self._enter()
        try:
            result = await self._attempts(job, client, progress)
            return result
        finally:
            self._leave()
            self._settle(job, progress, result)

    async def _attempts(self, job: Job, client: Client, progress: Progress) -> Done | Failure:
        """Before the first chunk a failure is made good elsewhere, three attempts in all."""
        prompts = prompts_of(job.body)
        ask = Ask(
            self,
            job,
            NO_PROMPT if job.endpoint == COUNT_TOKENS else self.estimates.tokens(job.model, prompts),
            progress,
            self._clock(),
            self.estimates.answer_tokens(job.model, most_tokens(job.body)),
            conversation_of(job.token_id, job.body),
        )
        while True:
            lease = await self.admission.lease(ask)
            if isinstance(lease, Failure):
                return lease
            with lease:
                result = await self._relay(lease.inbox, job, client, progress)
            self._judge(job, lease, result)
            if not isinstance(result, Failure):
                self.estimates.learn(job.model, prompts, progress.usage.get("prompt_tokens"))
                self.estimates.learn_answer(job.model, progress.usage.get("completion_tokens"))
                self.affinities.served(ask.conversation, lease.provider_id)
                return result
            if not result.retryable or progress.chunks or progress.attempts >= MAX_ATTEMPTS:
                return result
            self._metrics.retries.labels(blame.retry_kind(result)).inc()
            ask.failed(lease.provider_id, result)

    def route(self, request: Request) -> Chosen | Refused:
        began_s = self._clock()
        outcome = route(request, self._hub.views, began_s, self._rng, self._timings, self._tables())
        self.decisions.note(request, outcome, self._clock() - began_s)
        return outcome

    def _gated(self) -> dict[tuple[str, Reason], int]:
        return gated(self._hub.views, self._clock(), self._timings, self._tables())

    def _breakers(self) -> list[Breaker]:
        return [breaker for view in self._hub.views.values() for breaker in view.breakers.values()]

    def take(self, ask: "Ask", provider_id: str) -> Lease | Failure:
        """Holds the place, and sends the request to it."""
        job, progress = ask.job, ask.progress
        request_id = f"{job.id}.{progress.attempts + 1}"
        frame = self._frame(job, request_id)
        if isinstance(frame, Failure):
            return frame
        progress.attempts += 1
        progress.provider_id = provider_id
        self._accounts.sent(job, progress)
        held = ExitStack()
        hold = Hold(job.model, ask.tokens.likely)
        inbox = held.enter_context(self._hub.lease(provider_id, hold, request_id, frame))
        log.event("attempt", request_id=job.request_id, attempt=request_id, provider=provider_id, model=job.model)
        return Lease(provider_id, request_id, self._hub.views[provider_id].generation, inbox, held)

    def refusal(self, ask: "Ask", refused: Refused) -> Failure:
        reason = refusals.named_reason(refused) if refused.beyond is None else refused.beyond.reason
        self._metrics.refusals.labels(reason.value).inc()
        others = filter(ask.job.limits.allow, self._hub.views.present)
        return refusals.refusal(ask.job.model, others, ask.tokens, refused)

    def _judge(self, job: Job, lease: Lease, result: Done | Failure) -> None:
        """What an attempt's end says of the provider."""
        self._metrics.attempts.labels(outcome(result).value).inc()
        if not isinstance(result, Failure):
            self._experience.succeeded(lease.provider_id, job.model, job.token_id)
            return
        note = log.warning if result.status >= 500 else log.event
        note(
            "attempt_failed",
            request_id=job.request_id,
            attempt=lease.request_id,
            provider=lease.provider_id,
            model=job.model,
            status=result.status,
            code=result.code,
        )
        if result.code == "queue_full":
            self._experience.full(lease.provider_id, job.model, result.retry_after_s or 1)
        if blame.at_fault(result):
            self._experience.failed(lease.provider_id, job.model, blame.witness(job, result, lease.generation))

    def _frame(self, job: Job, request_id: str) -> str | Failure:
        """What a client may send is not always what fits into a frame: 1e15 is spelled in full there."""
        deadline_ms = round(self._timings.deadline_s * 1000)
        request = InferenceRequest(request_id=request_id, endpoint=job.endpoint, body=job.body, deadline_ms=deadline_ms)
        try:
            frame = encode(request)
        except (ValueError, RecursionError):
            return nested_too_deeply()
        if 4 * len(frame) > MAX_FRAME_BYTES and len(frame.encode()) > MAX_FRAME_BYTES:
            return Failure(413, "invalid_request_error", "body_too_large", "The body is too large to be sent on.")
        return frame

    async def _relay(self, inbox: Inbox, job: Job, client: Client, progress: Progress) -> Done | Failure:
        patience = Patience(self._timings, self._clock)
        writing = False
        try:
            async with alarm() as limit:
                while True:
                    limit.within(patience.left_s)
                    frame = await inbox.take()
                    patience.heard(frame)
                    ending = patience.failure() if patience.over else self._ending(frame, job, progress)
                    if ending is not None:
                        return ending
                    if isinstance(frame, InferenceChunk | InferenceNotice):
                        limit.within(STALLED_CLIENT_S)
                        writing = True
                        await self._pass_on(frame, job, client, progress)
                        writing = False
        except TimeoutError:
            return broken(Broken.SLOW_CLIENT) if writing else patience.failure()

    def _ending(self, frame: Frame | Broken, job: Job, progress: Progress) -> Done | Failure | None:
        """None where more is to come."""
        match frame:
            case InferenceChunk() if unnameable(job.endpoint, frame.data):
                return broken(Broken.MALFORMED)
            case InferenceChunk() | InferenceNotice() | InferenceAccepted():
                return None
            case InferenceComplete():
                return _done(frame, job, progress)
            case InferenceError():
                self._note_refusal(job, frame, progress)
                return failed(frame)
            case Broken():
                return broken(frame)
            case _:
                assert_never(frame)

    async def _pass_on(
        self, frame: InferenceChunk | InferenceNotice, job: Job, client: Client, progress: Progress
    ) -> None:
        if isinstance(frame, InferenceNotice):
            await client.notice(frame.kind)
        elif job.stream:
            self._count_chunk(job, progress)
            progress.delivered(frame)
            await client.chunk(frame.data)

    def _count_chunk(self, job: Job, progress: Progress) -> None:
        self._metrics.chunks.inc()
        if not progress.chunks:
            self._metrics.first_chunk.observe((self._now() - job.started_at).total_seconds())

    def models(self) -> list[str]:
        """What the listed providers advertise."""
        return self._hub.views.models

    def _note_refusal(self, job: Job, frame: InferenceError, progress: Progress) -> None:
        lacking = frame.status in CAPACITY and frame.code not in NO_CAPACITY_MATTER
        if lacking and not progress.chunks and progress.provider_id is not None:
            self._experience.refused(progress.provider_id, job.model)

    def _enter(self) -> None:
        self._running += 1
        self._idle.clear()
        self._metrics.running.set(self._running)

    def _leave(self) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()
        self._metrics.running.set(self._running)

    def _settle(self, job: Job, progress: Progress, result: Done | Failure | None) -> None:
        self._metrics.jobs.labels(outcome(result).value).inc()
        if progress.attempts:
            self._accounts.ended(progress.bill(job, result, self._now()))


@dataclass(slots=True)
class Ask:
    """A job that wants a place (admission.Ask), now or, after a failure, again."""

    dispatcher: Dispatcher
    job: Job
    tokens: Tokens
    progress: Progress
    arrived_s: float
    answer_tokens: int
    conversation: bytes | None
    tried: list[str] = field(default_factory=list)
    failure: Failure | None = None
    """The last, which is told where nobody else could take it."""

    @property
    def name(self) -> str:
        return self.job.request_id

    @property
    def key(self) -> int:
        return self.job.token_id

    @property
    def priority(self) -> int:
        return self.job.priority

    @property
    def request(self) -> Request:
        return Request(
            self.job.model,
            self.tokens.likely,
            self.tried,
            self.tokens.least,
            self.answer_tokens,
            served_last=self.dispatcher.affinities.last(self.conversation),
            name=self.name,
        )

    def take(self, provider_id: str) -> Lease | Failure:
        return self.dispatcher.take(self, provider_id)

    def refuse(self, refused: Refused) -> Failure:
        return self.failure or self.dispatcher.refusal(self, refused)

    def failed(self, provider_id: str, failure: Failure) -> None:
        """Who was only full may be asked again, once it may have room."""
        self.failure = failure
        if failure.code != "queue_full":
            self.tried.append(provider_id)


def _done(frame: InferenceComplete, job: Job, progress: Progress) -> Done | Failure:
    progress.parks = frame.preempt.parks
    progress.recomputes = frame.preempt.recomputes
    if frame.body is None and not job.stream:  # nothing was delivered, whatever it says it has counted
        return internal_error("The provider has finished without an answer.", "no_answer", retryable=True)
    progress.usage = frame.usage
    return Done(frame.body)
