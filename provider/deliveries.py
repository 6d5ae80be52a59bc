"""The requests of one coordinator and their answers: they outlive its connections, for a while."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import aclosing
from typing import Protocol, assert_never

from provider.api.surface import Answer, Chunk, Complete, NoticeItem, Surface
from provider.api.wire import Failure, internal_error, queue_full
from provider.delivery import Delivery
from provider.errors import RequestFailed
from provider.outbox import Outbox
from provider.protocol import (
    RESUME_WITHIN_S,
    InferenceChunk,
    InferenceComplete,
    InferenceNotice,
    InferenceRequest,
    Preempt,
    ResumePoint,
    Wire,
)

log = logging.getLogger(__name__)

MAX_OPEN = 4096
"""Far beyond what slots take in: a coordinator that sends more has a fault."""
MAX_ENDED = 256
"""Answers that have ended and are not acknowledged; the oldest are given up beyond."""
LONGEST_DEADLINE_S = 30 * 86_400.0
DEADLINE = Failure(504, "timeout_error", "deadline_exceeded", "The request's deadline passed.", retryable=False)


class Admission(Protocol):
    async def pre_accept(self, model_id: str) -> None: ...


class Deliveries:
    """Owner of a coordinator's requests: each runs as a task that no connection ends. With the link down they go on
    until their buffers are full and are then held; those that cannot be resumed within `resume_within_s` are
    cancelled."""

    def __init__(self, surface: Surface, admission: Admission, resume_within_s: float = RESUME_WITHIN_S) -> None:
        self.resume_within_s = resume_within_s
        self._surface = surface
        self._admission = admission
        self._open: dict[str, Delivery] = {}
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._outbox: Outbox | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._none_open = asyncio.Event()
        self._none_open.set()

    @property
    def resumable(self) -> list[ResumePoint]:
        """What a new connection offers to go on with."""
        return [ResumePoint(request_id=id, next_seq=one.next_seq) for id, one in self._open.items()]

    async def settled(self) -> None:
        """Returns when every answer has arrived. Without a connection none does: the caller has patience or has not."""
        await self._none_open.wait()

    # The connection

    def resume(self, outbox: Outbox, points: Iterable[ResumePoint]) -> None:
        """The coordinator has answered, and lacks these; whatever else is open it does not want."""
        self._stop_waiting()
        self._outbox = outbox
        wanted = {point.request_id: point.next_seq for point in points}
        for id in [id for id in self._open if id not in wanted]:
            self.abandon(id)
        for id, next_seq in wanted.items():
            self._go_on(id, next_seq)

    def suspend(self) -> None:
        """The connection is lost. The answers wait for another."""
        self._outbox = None
        if self._open and self._expiry is None:
            log.warning("answers_wait count=%d resume_within_s=%.0f", len(self._open), self.resume_within_s)
            self._expiry = asyncio.get_running_loop().call_later(self.resume_within_s, self._expire)

    async def close(self) -> None:
        """Cancels all of it; returns when their tasks have ended."""
        self._stop_waiting()
        tasks = list(self._tasks.values())
        for id in list(self._open):
            self.abandon(id)
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests

    def start(self, request: InferenceRequest) -> None:
        id = request.request_id
        if id in self._open:
            log.error("duplicate_request request=%s", id)
            return
        delivery = self._open[id] = Delivery(id, self._ready)
        self._none_open.clear()
        if len(self._open) > MAX_OPEN:
            delivery.fail(queue_full(f"{MAX_OPEN} requests of this coordinator are open here."))
            self._note_end()
            return
        task = self._tasks[delivery] = asyncio.create_task(self._answer(delivery, request))
        task.add_done_callback(lambda _: self._tasks.pop(delivery, None))

    def abandon(self, request_id: str) -> None:
        """Ends it without another word."""
        delivery = self._open.get(request_id)
        if delivery is not None:
            self._forget(delivery)
            delivery.silence()
            if (task := self._tasks.get(delivery)) is not None:
                task.cancel()

    def acknowledge(self, request_id: str, seq: int) -> None:
        delivery = self._open.get(request_id)
        if delivery is not None:
            delivery.acknowledge(seq)
            if delivery.arrived:
                self._forget(delivery)

    def _go_on(self, id: str, next_seq: int) -> None:
        delivery = self._open.get(id)
        if delivery is None or delivery.resume(next_seq):
            return
        log.error("replay_lost request=%s asked_for=%d next=%d", id, next_seq, delivery.next_seq)
        if (task := self._tasks.get(delivery)) is not None:
            task.cancel()
        delivery.give_up()

    def _expire(self) -> None:
        self._expiry = None
        log.warning("answers_given_up count=%d", len(self._open))
        for id in list(self._open):
            self.abandon(id)

    def _stop_waiting(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _ready(self, delivery: Delivery) -> None:
        if self._outbox is not None and self._open.get(delivery.request_id) is delivery:
            self._outbox.ready(delivery)

    def _forget(self, delivery: Delivery) -> None:
        self._open.pop(delivery.request_id, None)
        if not self._open:
            self._none_open.set()

    def _note_end(self) -> None:
        """An older coordinator acknowledges no last frame."""
        ended = [one for one in self._open.values() if one.ended and not one.pending]
        for one in ended[: max(0, len(ended) - MAX_ENDED)]:
            self._forget(one)

    async def _answer(self, delivery: Delivery, request: InferenceRequest) -> None:
        """The task boundary of one request: however it ends, the coordinator is told and nobody else notices."""
        try:
            async with asyncio.timeout(min(request.deadline_ms / 1000, LONGEST_DEADLINE_S)):
                await self._generate(delivery, request)
        except RequestFailed as failed:
            delivery.fail(failed.failure)
        except TimeoutError:
            delivery.fail(DEADLINE)
        except Exception as error:
            log.exception("request_failed request=%s", request.request_id)
            delivery.fail(internal_error(f"The provider failed: {type(error).__name__}."))
        self._note_end()

    async def _generate(self, delivery: Delivery, request: InferenceRequest) -> None:
        answer = await self._surface.open(request.endpoint, request.body, request.request_id)
        await self._admission.pre_accept(request.body["model"])
        delivery.accept()
        async with aclosing(answer.items()) as items:
            async for item in items:
                await self._pass_on(delivery, answer, item)

    async def _pass_on(self, delivery: Delivery, answer: Answer, item: Chunk | NoticeItem | Complete) -> None:
        id, seq = delivery.request_id, delivery.next_seq
        match item:
            case Chunk(data, prompt_tokens, completion_tokens):
                chunk = InferenceChunk(
                    request_id=id, seq=seq, data=data, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
                )
                await delivery.say(chunk, answer.hold)
            case NoticeItem(kind):
                await delivery.say(InferenceNotice(request_id=id, seq=seq, kind=kind), answer.hold)
            case Complete(body, usage, parks, recomputes):
                preempt = Preempt(parks=parks, recomputes=recomputes)
                last: Wire = InferenceComplete(request_id=id, seq=seq, body=body, usage=usage, preempt=preempt)
                delivery.end(last)
            case _:
                assert_never(item)
