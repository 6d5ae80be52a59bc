"""One model's place: its worker while the model is loaded, and the streams of those who wait for it.

A slot outlives its worker: it can be loaded and unloaded again and again, and its counters go on. A worker that dies
or hangs is replaced (provider.keeping). Streams that had begun end with a typed error; requests of which nothing has
been sent yet are submitted again, and no other model notices. A worker that keeps dying leaves the slot failed for a
while, after which it is as one that is not loaded: whoever asks for the model has another load tried.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from provider.api import wire
from provider.draft_news import DraftNews, drafts_after
from provider.errors import RequestFailed
from provider.exact.policy import Mode as ExactMode
from provider.generation import Delta, Event, Failed, Finished, GenerationRequest, Notice, TextTokenizer
from provider.keeping import HANG_S, Keeper
from provider.pipe import (
    Cancel,
    ClearCache,
    Command,
    Describe,
    EngineState,
    Grant,
    Granted,
    Hold,
    Loaded,
    LoadSpec,
    Report,
    SequenceState,
    Submit,
)
from provider.questions import Questions
from provider.runner import Runner
from provider.standing import SlotStatus, Standing
from provider.streams import Stream, Streams
from provider.totals import TokenRates, Totals

log = logging.getLogger(__name__)

STALL_S = 30.0
"""A busy engine that has been silent this long is reported as stalled."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a model before it is loaded."""

    n_ctx: int
    vocab_size: int
    drafts: bool = False
    drafts_not: str | None = None
    """Why it will not draft."""


@dataclass(frozen=True, slots=True)
class SlotLimits:
    max_concurrent: int
    max_waiting: int


class ModelSlot:
    """Implements provider.generation.ServedModel, and provider.keeping.Kept. Owner of its runner; lives on one event
    loop."""

    def __init__(
        self,
        model_id: str,
        tokenizer: TextTokenizer,
        spec: LoadSpec,
        limits: SlotLimits,
        create_runner: Callable[[], Runner],
        hang_s: float = HANG_S,
        clock: Callable[[], float] = time.monotonic,
        planned: Planned | None = None,
        on_failed: Callable[[bool], None] = lambda _: None,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_failed` is called when the worker is given up, and told whether it was because of its self-test;
        `on_replaced`, when another one has taken a dead one's place."""
        self.id = model_id
        self.tokenizer = tokenizer
        self.limits = limits
        self.standing = Standing(model_id, clock)
        self.draining = False
        """It is being unloaded: it finishes what it has and takes no more. Set by residency."""
        self.rates = TokenRates()
        self.totals = Totals()
        self.engine = EngineState()
        self.loaded: Loaded | None = None
        self.created = int(time.time())
        self.spec = spec
        self.planned = planned
        self._on_failed = on_failed
        self._on_replaced = on_replaced
        self._create_runner = create_runner
        self._clock = clock
        self._runner: Runner | None = None
        self._streams = Streams(self.totals, clock)
        self._questions = Questions()
        self._keeper = Keeper(self, clock, hang_s)
        self._drafting = DraftNews(model_id)
        self._heard_at = clock()
        self._untold: Grant | None = None

    @property
    def status(self) -> SlotStatus:
        return self.standing.status

    @property
    def reason(self) -> str | None:
        """Why it is not ready."""
        return self.standing.reason

    @property
    def n_ctx(self) -> int:
        if self.loaded is None and self.planned is not None:
            return self.planned.n_ctx
        return self._facts.n_ctx

    @property
    def vocab_size(self) -> int:
        if self.loaded is None and self.planned is not None:
            return self.planned.vocab_size
        return self._facts.vocab_size

    @property
    def pid(self) -> int | None:
        return None if self._runner is None or self.status == "failed" else self._runner.pid

    @property
    def used_at(self) -> float:
        """When a request last came or went, or the model was loaded."""
        return self._streams.used_at

    @property
    def open(self) -> int:
        return len(self._streams)

    @property
    def waiting(self) -> int:
        """Requests that are neither being worked on nor parked, those for a worker that is loading included."""
        inside = self.engine.running + self.engine.prefill + self.engine.parked + self.engine.moving
        return max(0, self.open - inside)

    @property
    def idle(self) -> bool:
        """Loaded, and nobody's: it could be unloaded now."""
        return self.status == "ready" and not self._streams and not self.draining

    @property
    def resident_bytes(self) -> int:
        """What unloading it would give back: its worker's arrays, and the process around them."""
        baseline = 0 if self.loaded is None else self.loaded.baseline_bytes
        return self.engine.active_bytes + baseline

    @property
    def weight_bytes(self) -> int:
        """What it holds however many chats it serves: the weights as loaded, and the process around them."""
        return 0 if self.loaded is None else self.loaded.active_bytes + self.loaded.baseline_bytes

    @property
    def absent_bytes(self) -> int:
        """What its next worker will hold again: the one before it has died, and its memory is there for a moment."""
        return self.weight_bytes if self.status == "loading" else 0

    @property
    def silent_s(self) -> float:
        """For how long a ready worker has said nothing while somebody waits for it."""
        return self._clock() - self._heard_at if self.status == "ready" and self._streams else 0.0

    @property
    def stalled(self) -> bool:
        return self.silent_s > STALL_S

    # Loading and unloading

    async def start(self) -> None:
        """Loads the model; raises ModelError or WorkerError, and is then unloaded. Afterwards the worker is watched."""
        self._keeper.cancel()  # of a worker that was given up
        try:
            await self.launch()
        except BaseException as error:
            self.standing.becomes("unloaded", str(error) or type(error).__name__)
            raise
        self._streams.used_at = self._clock()
        self._keeper.begin()

    async def stop(self) -> None:
        """Ends the worker; open streams end with a typed error."""
        self.standing.becomes("unloaded", "the model is not loaded")
        await self._keeper.end()
        if self._runner is not None:
            await self._runner.stop()
        self.forget_worker()
        self.loaded, self.draining = None, False
        self._streams.end_all(wire.unavailable("The model is being unloaded.", "model_unloaded"))

    # What its worker is told to be

    def start_with(self, kv_pool_bytes: int, activation_reserve_bytes: int) -> None:
        """What the next worker may take."""
        self.spec = msgspec.structs.replace(
            self.spec, kv_pool_bytes=kv_pool_bytes, activation_reserve_bytes=activation_reserve_bytes
        )

    def want_exact(self, mode: ExactMode) -> None:
        """Of the next worker, and of those that take its place."""
        self.spec = msgspec.structs.replace(self.spec, exact=mode)

    def allow_drafter(self, allowed: bool) -> None:
        """Whether the next worker may load a head from files of its own."""
        drafts = self.spec.drafts
        if drafts is not None:
            self.spec = msgspec.structs.replace(self.spec, drafts=msgspec.structs.replace(drafts, room=allowed))

    def was_told(self, kv_pool_bytes: int, activation_reserve_bytes: int) -> bool:
        """Whether that is what it was granted last."""
        told = self.spec
        return (told.kv_pool_bytes, told.activation_reserve_bytes) == (kv_pool_bytes, activation_reserve_bytes)

    async def grant(self, epoch: int, kv_pool_bytes: int, activation_reserve_bytes: int) -> bool:
        """Returns once the worker keeps to it; False when an open chat could not end in so little. A worker that is
        yet to be started starts with it; one that is just starting is told when it is ready."""
        former = self.spec
        self.start_with(kv_pool_bytes, activation_reserve_bytes)
        if self._runner is None or self.status in ("unloaded", "failed"):
            return True
        told = Grant(epoch=epoch, kv_pool_bytes=kv_pool_bytes, activation_reserve_bytes=activation_reserve_bytes)
        if self.status == "ready":
            self._runner.send(told)
        else:
            self._untold = told
        accepted = await self._questions.whether_granted(epoch)
        if not accepted:
            self.spec = former
        return accepted

    async def wait_empty(self) -> None:
        """Returns when no request is open."""
        await self._streams.wait_empty()

    async def clear_cache(self) -> None:
        """Returns when the worker has given its cache back, or does not answer in time."""
        if self.status == "ready" and self._runner is not None:
            await self._questions.cleared(lambda: self._send(ClearCache()))

    # Requests

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Notice | Finished]:
        """See provider.generation.Serving.generate."""
        stream = self._admit(request)
        try:
            self._send(Submit(request))  # while the worker is loading: when it is ready
            while True:
                event = await stream.next_event(self._clock)
                if isinstance(event, Failed):
                    raise RequestFailed(event.failure)
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            if self._streams.get(request.request_id) is not None:
                self._streams.close(request.request_id)
                self._send(Cancel(request.request_id))

    def hold(self, request_id: str, held: bool) -> None:
        """See provider.generation.Serving.hold."""
        stream = self._streams.get(request_id)
        if stream is not None and stream.held != held:
            stream.held = held
            self._send(Hold(request_id, held))

    async def describe(self) -> list[SequenceState]:
        """Every open sequence as the engine sees it; empty when it does not answer in time."""
        if self.status != "ready" or self._runner is None:
            return []
        return await self._questions.described(lambda: self._send(Describe()))

    def _admit(self, request: GenerationRequest) -> Stream:
        if self.status in ("failed", "unloaded"):
            raise RequestFailed(self.standing.refusal)
        if self.open >= self.limits.max_concurrent + self.limits.max_waiting:
            message = f"{self.open} requests are running or waiting for {self.id}; try again shortly."
            raise RequestFailed(wire.queue_full(message))
        if self._streams.get(request.request_id) is not None:
            raise RequestFailed(wire.invalid_request(f"the request id {request.request_id!r} is already in use"))
        if not self._streams:
            self._heard_at = self._clock()
        return self._streams.begin(request)

    def _send(self, command: Command) -> None:
        if self._runner is not None and self.status == "ready":
            self._runner.send(command)

    def _on_report(self, report: Report | Granted) -> None:
        self._heard_at = self._clock()
        if isinstance(report, Granted):
            self._note_grant(report)
            return
        if report.state is not None:
            self.totals.note(self.engine, report.state)
            self.engine = report.state
            self.rates.note(report)
            self._note_drafting(report.state)
        self._questions.note(report, busy=bool(self._streams))
        for event in report.events:
            self._deliver(event)

    def _note_drafting(self, state: EngineState) -> None:
        if self.loaded is None:
            return
        drafts = drafts_after(state, self.loaded.drafts)
        if drafts != self.loaded.drafts:
            self.loaded = msgspec.structs.replace(self.loaded, drafts=drafts)
            self._drafting.tell(drafts, self.spec.drafts)

    def _note_grant(self, granted: Granted) -> None:
        if self.loaded is not None:
            self.loaded = msgspec.structs.replace(self.loaded, n_ctx=granted.n_ctx, pool_tokens=granted.pool_tokens)
        self._questions.note_grant(granted)

    def _deliver(self, event: Event) -> None:
        drafts = self.loaded is not None and self.loaded.drafts.active
        if isinstance(event, Finished) and drafts and self._streams.get(event.request_id) is not None:
            self._drafting.finished(event, self.engine.drafts)
        self._streams.deliver(event)

    # For its keeper

    @property
    def runner(self) -> Runner | None:
        return self._runner

    async def launch(self) -> None:
        """A worker, told what waits for it. Raises ModelError or WorkerError."""
        self.standing.becomes("loading", self.reason)
        self._runner = self._create_runner()
        self.loaded = await self._runner.start(self.spec, self._on_report)
        self.engine = EngineState(active_bytes=self.loaded.active_bytes)
        self.standing.becomes("ready")
        self._heard_at = self._clock()
        log.info(
            "worker_ready model=%s pid=%s device=%s n_ctx=%d load_s=%.2f",
            self.id, self._runner.pid, self.loaded.device, self.loaded.n_ctx, self.loaded.load_s,
        )  # fmt: skip
        self._drafting.tell(self.loaded.drafts, self.spec.drafts)
        if self._untold is not None:
            self._runner.send(self._untold)
            self._untold = None
        for stream in self._streams:
            self._send(Submit(stream.request))
            if stream.held:
                self._send(Hold(stream.request.request_id, True))

    def mourn(self, how: str) -> None:
        """Ends the streams that cannot start again with another worker."""
        self.standing.becomes("loading", self.reason)
        self.forget_worker()
        self.totals.restarts += 1
        failure = wire.internal_error(f"The worker serving {self.id} ended ({how}).", "worker_died", True)
        lost = self._streams.end_those_lost(failure)
        log.error("worker_died model=%s how=%r lost=%d resubmitted=%d", self.id, how, lost, self.open)

    def forget_worker(self) -> None:
        """Of a worker that has ended: it holds nothing, and owes no answer."""
        self._runner, self._untold, self.engine = None, None, EngineState()
        self._questions.forget()

    def replaced(self) -> None:
        self._on_replaced()

    def give_up(self, reason: str, self_test: bool = False) -> None:
        """For as long as its cool-off lasts, or until the model is loaded by hand."""
        self.forget_worker()
        self.loaded = None
        self.standing.fail(reason, for_good=self_test)
        self._streams.end_all(self.standing.refusal)
        self._on_failed(self_test)

    @property
    def _facts(self) -> Loaded:
        if self.loaded is None:
            raise RequestFailed(wire.unavailable(f"The model {self.id} is still loading.", "slot_state"))
        return self.loaded
