"""A job's way through a provider: choose, hold, send, relay, settle; again elsewhere while nothing was delivered."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol, assert_never

from coordinator import log
from coordinator.config import Timings
from coordinator.estimates import Estimates, Tokens, prompts_of
from coordinator.fleet import Hold
from coordinator.hub import Hub
from coordinator.inbox import Broken, Inbox
from coordinator.job import Done, Job, Progress, outcome
from coordinator.patience import RETRY_AFTER_S, Patience
from coordinator.routing import BUSY, Beyond, Chosen, Reason, Refused, Request, route
from coordinator.store.records import MemoryTables, Usage
from provider.api.wire import (
    Failure,
    context_exceeded,
    internal_error,
    invalid_request,
    model_not_found,
    queue_full,
    unavailable,
)
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


class Dispatcher:
    """Owned by the event loop; each job is run by the task of its request, whose cancellation cancels the job."""

    def __init__(
        self,
        hub: Hub,
        timings: Timings,
        record: Callable[[Usage], None],
        tables: Callable[[], MemoryTables],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        rng: random.Random,
    ) -> None:
        self._hub = hub
        self._metrics = hub.metrics
        self._timings = timings
        self._record = record
        self._tables = tables
        self._estimates = Estimates()
        self._clock = clock
        self._now = now
        self._rng = rng
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
            return unavailable("This coordinator is shutting down.", "draining", RETRY_AFTER_S)
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
        tried: list[str] = []
        failure: Failure | None = None
        prompts = prompts_of(job.body)
        tokens = self._estimates.tokens(job.model, prompts)
        while progress.attempts < MAX_ATTEMPTS:
            match self._route(job, tokens, tried):
                case Refused() as refused:
                    return failure or self._refusal(job, tokens, refused)
                case Chosen(provider_id):
                    result = await self._attempt(job, tokens, provider_id, client, progress)
            if not isinstance(result, Failure):
                self._estimates.learn(job.model, prompts, progress.usage.get("prompt_tokens"))
                return result
            if not result.retryable or progress.chunks:
                return result
            failure = result
            tried.append(provider_id)
        assert failure is not None
        return failure

    def _route(self, job: Job, tokens: Tokens, tried: list[str]) -> Chosen | Refused:
        request = Request(job.model, tokens.likely, tried, tokens.least)
        return route(request, self._hub.views, self._clock(), self._rng, self._timings, self._tables())

    async def _attempt(
        self, job: Job, tokens: Tokens, provider_id: str, client: Client, progress: Progress
    ) -> Done | Failure:
        """Nothing awaits between the routing decision and the hold on what it chose."""
        progress.attempts += 1
        progress.provider_id = provider_id
        request_id = f"{job.id}.{progress.attempts}"
        frame = self._frame(job, request_id)
        if isinstance(frame, Failure):
            return frame
        with self._hub.lease(provider_id, Hold(job.model, tokens.likely), request_id, frame) as inbox:
            result = await self._relay(inbox, job, client, progress)
        self._metrics.attempts.labels(outcome(result).value).inc()
        if isinstance(result, Failure):
            self._note_failure(job, provider_id, request_id, result)
        return result

    def _frame(self, job: Job, request_id: str) -> str | Failure:
        """What a client may send is not always what fits into a frame: 1e15 is spelled in full there."""
        deadline_ms = round(self._timings.deadline_s * 1000)
        request = InferenceRequest(request_id=request_id, endpoint=job.endpoint, body=job.body, deadline_ms=deadline_ms)
        try:
            frame = encode(request)
        except (ValueError, RecursionError):
            return invalid_request("The body is nested too deeply.", code="invalid_json")
        if 4 * len(frame) > MAX_FRAME_BYTES and len(frame.encode()) > MAX_FRAME_BYTES:
            return Failure(413, "invalid_request_error", "body_too_large", "The body is too large to be sent on.")
        return frame

    async def _relay(self, inbox: Inbox, job: Job, client: Client, progress: Progress) -> Done | Failure:
        patience = Patience(self._timings, self._clock)
        while True:
            try:
                async with asyncio.timeout(patience.left_s):
                    frame = await inbox.take()
            except TimeoutError:
                return patience.failure()
            patience.heard(frame)
            if patience.over:
                return patience.failure()
            match frame:
                case InferenceAccepted():
                    pass
                case InferenceChunk() | InferenceNotice():
                    if not await self._pass_on(frame, job, client, progress):
                        return _broken(Broken.SLOW_CLIENT)
                case InferenceComplete():
                    return _done(frame, job, progress)
                case InferenceError():
                    self._note_refusal(job, frame, progress)
                    return _failure(frame)
                case Broken():
                    return _broken(frame)
                case _:
                    assert_never(frame)

    async def _pass_on(
        self, frame: InferenceChunk | InferenceNotice, job: Job, client: Client, progress: Progress
    ) -> bool:
        """False when the client does not read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STALLED_CLIENT_S):
                if isinstance(frame, InferenceNotice):
                    await client.notice(frame.kind)
                elif job.stream:
                    self._count_chunk(job, progress)
                    progress.delivered(frame.data)
                    await client.chunk(frame.data)
            return True
        return False

    def _count_chunk(self, job: Job, progress: Progress) -> None:
        self._metrics.chunks.inc()
        if not progress.chunks:
            self._metrics.first_chunk.observe((self._now() - job.started_at).total_seconds())

    def _refusal(self, job: Job, tokens: Tokens, refused: Refused) -> Failure:
        if refused.beyond is not None:
            self._metrics.refusals.labels(refused.beyond.reason.value).inc()
            return _too_long(job, tokens, refused.beyond)
        reason = refused.reason if refused.listed else Reason.MODEL_NOT_SERVED
        assert reason is not None
        self._metrics.refusals.labels(reason.value).inc()
        if reason is Reason.MODEL_NOT_SERVED:
            return model_not_found(job.model, self.models())
        message = f"No provider can take a request for {job.model!r} now: {_tally(refused)}."
        if reason in BUSY:
            return replace(queue_full(message), code=reason.value)
        return unavailable(message, reason.value, RETRY_AFTER_S)

    def models(self) -> list[str]:
        """What the listed providers advertise."""
        return self._hub.views.models

    def _note_failure(self, job: Job, provider_id: str, request_id: str, failure: Failure) -> None:
        note = log.warning if failure.status >= 500 else log.event
        note(
            "attempt_failed",
            request_id=request_id,
            provider=provider_id,
            model=job.model,
            status=failure.status,
            code=failure.code,
        )
        if failure.code == "queue_full":
            self._hub.note_full(provider_id, job.model, failure.retry_after_s or 1)

    def _note_refusal(self, job: Job, frame: InferenceError, progress: Progress) -> None:
        lacking = frame.status in CAPACITY and frame.code not in NO_CAPACITY_MATTER
        if lacking and not progress.chunks and progress.provider_id is not None:
            self._hub.note_refused(progress.provider_id, job.model)

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
            self._record(progress.bill(job, result, self._now()))


def _done(frame: InferenceComplete, job: Job, progress: Progress) -> Done | Failure:
    progress.usage = frame.usage
    progress.parks = frame.preempt.parks
    progress.recomputes = frame.preempt.recomputes
    if frame.body is None and not job.stream:
        return internal_error("The provider has finished without an answer.", "no_answer", retryable=True)
    return Done(frame.body)


def _failure(frame: InferenceError) -> Failure:
    """The provider's own words and status; a status that is no error becomes 502."""
    status = frame.status if 400 <= frame.status <= 599 else 502
    detail = dict(frame.detail)
    kind = detail.pop("type", None)
    param = detail.pop("param", None)
    wait = detail.pop("retry_after_s", None)
    return Failure(
        status=status,
        type=kind if isinstance(kind, str) else _type_of(status),
        code=frame.code,
        message=frame.message,
        param=param if isinstance(param, str) else None,
        retryable=frame.retryable,
        retry_after_s=wait if isinstance(wait, int) else _retry_after(status),
        detail=detail,
    )


def _too_long(job: Job, tokens: Tokens, beyond: Beyond) -> Failure:
    message = (
        f"The prompt has at least {tokens.least} tokens, and no provider of {job.model!r} has room for more than "
        f"{beyond.longest_tokens}: shorten the prompt."
    )
    failure = context_exceeded(tokens.least, beyond.longest_tokens, message)
    return replace(failure, detail={**failure.detail, "reason": beyond.reason.value})


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    if status == 503:
        return "service_unavailable"
    return "invalid_request_error" if status < 500 else "internal_error"


def _retry_after(status: int) -> int | None:
    return RETRY_AFTER_S if status in (429, 503) else None


def _broken(why: Broken) -> Failure:
    match why:
        case Broken.PROVIDER_LOST:
            return unavailable("The connection to the provider was lost.", why.value, RETRY_AFTER_S)
        case Broken.PROVIDER_BUSY:
            return unavailable("The provider's connection takes no more requests.", why.value)
        case Broken.STOPPING:
            return replace(unavailable("This coordinator is shutting down.", "draining"), retryable=False)
        case Broken.SLOW_CLIENT:
            message = "The stream was read too slowly and has ended."
            return Failure(503, "service_unavailable", why.value, message)
        case Broken.SEQUENCE_GAP:
            return internal_error("The provider's stream has a gap.", why.value, retryable=True)
        case _:
            assert_never(why)


def _tally(refused: Refused) -> str:
    told = {reason: count for reason, count in refused.counts.items() if reason is not Reason.MODEL_NOT_SERVED}
    return ", ".join(f"{told[kind]} {kind.value}" for kind in sorted(told, key=lambda reason: -reason.nearness))
