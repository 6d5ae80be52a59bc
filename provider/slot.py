"""One model's place: its worker kept alive while the model is loaded, and the streams of those who wait for it.

A slot outlives its worker: it can be loaded and unloaded again and again, and its counters go on. A worker that dies
or hangs is replaced. Streams that had begun end with a typed error; requests of which nothing has been sent yet are
submitted again, and no other model notices. A worker that keeps dying leaves the slot failed for a while, after which
it is as one that is not loaded: whoever asks for the model has another load tried.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from provider.api import wire
from provider.cool_off import CoolOff
from provider.errors import ModelError, RequestFailed, SelfTestFailed, WorkerError
from provider.exact.policy import Mode as ExactMode
from provider.generation import Delta, Entered, Event, Failed, Finished, GenerationRequest, Notice, TextTokenizer
from provider.mtp.policy import Declaration, failed_while_drafting
from provider.pipe import (
    Cancel,
    ClearCache,
    Describe,
    DraftStatus,
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
from provider.runner import Runner

log = logging.getLogger(__name__)

SlotStatus = Literal["unloaded", "loading", "ready", "failed"]

KEEPALIVE_S = 2.0
"""Of a parked chat: within what clients and proxies take for a dead connection. A dead engine is another matter: it is
told by its silence towards the slot, which these do not break."""
STALL_S = 30.0
"""A busy engine that has been silent this long is reported as stalled."""
HANG_S = 120.0
"""... and this long, is ended and replaced. The longest honest step is one prefill chunk."""
WATCH_S = 1.0
QUICK_DEATHS = 4
"""This many deaths in QUICK_DEATHS_S seconds, and the slot is failed until its cool-off is over."""
QUICK_DEATHS_S = 120.0
BACKOFF_S = (0.0, 1.0, 4.0)
ENTRIES = 2
"""A request that was being worked on when its worker died is tried once more: it may be what kills workers."""
DESCRIBE_S = 1.0
CLEAR_S = 5.0
"""A worker clears its cache between two steps."""
RATE_SMOOTHING = 0.2
DRAFTABLE_TOKENS = 4
"""A shorter answer may well end before anything could be drafted for it."""


@dataclass(slots=True)
class Stream:
    """A request in flight. `begun`: the client has seen something of it, so it cannot start again."""

    request: GenerationRequest
    events: asyncio.Queue[Delta | Notice | Finished | Failed] = field(default_factory=asyncio.Queue)
    begun: bool = False
    entries: int = 0
    held: bool = False
    told_tokens: int = 0
    keepalive_at: float | None = None
    """While it is parked: when its client is to hear that it still is, whatever the queue holds meanwhile."""

    async def next_event(self, clock: Callable[[], float]) -> Delta | Notice | Finished | Failed:
        try:
            patience_s = None if self.keepalive_at is None else max(0.0, self.keepalive_at - clock())
            async with asyncio.timeout(patience_s):
                event = await self.events.get()
        except TimeoutError:
            assert self.keepalive_at is not None, "only a park is timed"
            self.keepalive_at = max(clock(), self.keepalive_at + KEEPALIVE_S)
            return Notice(self.request.request_id, "preempt-keepalive")
        if not isinstance(event, Notice):
            self.keepalive_at = None
        elif event.kind == "preempted":
            self.keepalive_at = clock() + KEEPALIVE_S
        elif event.kind == "resumed":
            self.keepalive_at = None
        return event


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


@dataclass(slots=True)
class Rates:
    """Tokens per second, smoothed over steps; None until measured."""

    decode_tps: float | None = None
    prefill_tps: float | None = None

    def note(self, report: Report) -> None:
        if report.step_s <= 0:
            return
        if report.decoded and not report.prefilled:
            self.decode_tps = _smooth(self.decode_tps, report.decoded / report.step_s)
        elif report.prefilled and not report.decoded:
            self.prefill_tps = _smooth(self.prefill_tps, report.prefilled / report.step_s)


@dataclass(slots=True)
class Totals:
    requests: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    parks: int = 0
    recomputes: int = 0
    restarts: int = 0
    given_up: int = 0
    failures: int = 0


class ModelSlot:
    """Implements provider.generation.ServedModel. Owner of its runner; lives on one event loop."""

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
        self._status: SlotStatus = "unloaded"
        self.reason: str | None = None
        self.draining = False
        """It is being unloaded: it finishes what it has and takes no more. Set by residency."""
        self.used_at = clock()
        self.rates = Rates()
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
        self._hang_s = hang_s
        self._runner: Runner | None = None
        self._streams: dict[str, Stream] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._heard_at = clock()
        self._described: asyncio.Future[list[SequenceState]] | None = None
        self._asked: dict[int, asyncio.Future[bool]] = {}
        self._untold: Grant | None = None
        self._cleared: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._deaths: list[float] = []
        self._cool_off = CoolOff()
        self._undrafted = False
        self._nonsense = False

    @property
    def status(self) -> SlotStatus:
        """`failed` for as long as its cool-off lasts."""
        return "unloaded" if self._status == "failed" and self.retry_in_s == 0 else self._status

    @property
    def retry_in_s(self) -> float | None:
        """Of a slot that has failed: how long until a load may be tried again; None where no time is set."""
        if self._status != "failed" or self._nonsense:
            return None
        return self._cool_off.left_s(self._clock())

    @property
    def refusal(self) -> wire.Failure:
        """What a request is told while there is no worker, nor one to come."""
        said, left_s = f"The model {self.id} is not running: {self.reason}", self.retry_in_s
        if left_s is None:
            return wire.unavailable(said, "slot_state")
        after_s = max(1, math.ceil(left_s))
        return wire.unavailable(f"{said.rstrip('.')}. It is tried again in {after_s} s.", "slot_state", after_s)

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
    def stalled(self) -> bool:
        return self.status == "ready" and bool(self._streams) and self._silence() > STALL_S

    async def start(self) -> None:
        """Loads the model; raises ModelError or WorkerError, and is then unloaded. Afterwards the worker is watched."""
        self._deaths.clear()
        for task in self._tasks:  # of a worker that was given up
            task.cancel()
        try:
            await self._launch()
        except BaseException as error:
            self._status, self.reason = "unloaded", str(error) or type(error).__name__
            raise
        self.used_at = self._clock()
        self._tasks = [asyncio.create_task(self._keep_alive()), asyncio.create_task(self._watch())]

    def failed_again(self, reason: str) -> bool:
        """A load of its model has failed, and there is no worker. Whether that is one more failure in a row of a slot
        that had been given up: it is failed again then, for longer."""
        if not self._cool_off.remembers(self._clock()):
            return False
        self._fail(reason)
        return True

    def recover(self) -> bool:
        """Whether its cool-off has ended since it was last asked."""
        if self._status != "failed" or self.status == "failed":
            return False
        self._status = "unloaded"
        return True

    async def stop(self) -> None:
        """Ends the worker; open streams end with a typed error."""
        self._status, self.reason = "unloaded", "the model is not loaded"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.stop()
        self._forget_worker()
        self.loaded, self.draining = None, False
        self._end_all(wire.unavailable("The model is being unloaded.", "model_unloaded"))

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
        asked = self._asked[epoch] = asyncio.get_running_loop().create_future()
        told = Grant(epoch=epoch, kv_pool_bytes=kv_pool_bytes, activation_reserve_bytes=activation_reserve_bytes)
        if self.status == "ready":
            self._runner.send(told)
        else:
            self._untold = told
        try:
            accepted: bool = await asked
        finally:
            self._asked.pop(epoch, None)
        if not accepted:
            self.spec = former
        return accepted

    async def wait_empty(self) -> None:
        """Returns when no request is open."""
        await self._empty.wait()

    async def clear_cache(self) -> None:
        """Returns when the worker has given its cache back, or does not answer in time."""
        if self.status != "ready" or self._runner is None:
            return
        self._cleared = asyncio.get_running_loop().create_future()
        self._runner.send(ClearCache())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLEAR_S):
                await self._cleared

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
            if request.request_id in self._streams:
                self._close(request.request_id)
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
        if self._described is None or self._described.done():
            self._described = asyncio.get_running_loop().create_future()
            self._send(Describe())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DESCRIBE_S):
                return await asyncio.shield(self._described)
        return []

    def _admit(self, request: GenerationRequest) -> Stream:
        if self.status in ("failed", "unloaded"):
            raise RequestFailed(self.refusal)
        if self.open >= self.limits.max_concurrent + self.limits.max_waiting:
            message = f"{self.open} requests are running or waiting for {self.id}; try again shortly."
            raise RequestFailed(wire.queue_full(message))
        if request.request_id in self._streams:
            raise RequestFailed(wire.invalid_request(f"the request id {request.request_id!r} is already in use"))
        if not self._streams:
            self._heard_at = self._clock()
        stream = self._streams[request.request_id] = Stream(request)
        self._empty.clear()
        self.used_at = self._clock()
        self.totals.requests += 1
        return stream

    def _send(self, command: Submit | Cancel | Hold | Describe) -> None:
        if self._runner is not None and self.status == "ready":
            self._runner.send(command)

    def _on_report(self, report: Report | Granted) -> None:
        self._heard_at = self._clock()
        if isinstance(report, Granted):
            self._note_grant(report)
            return
        if report.state is not None:
            self.engine = report.state
            self.rates.note(report)
            self._note_drafting(report.state)
            if self._cleared is not None and not self._cleared.done() and self._tells_of_clearing(report.state):
                self._cleared.set_result(None)
        if report.sequences is not None and self._described is not None and not self._described.done():
            self._described.set_result(report.sequences)
        for event in report.events:
            self._deliver(event)

    def _note_drafting(self, state: EngineState) -> None:
        """A head that has failed is not drafted with any more; told once."""
        if state.draft_failure is None or self.loaded is None or not self.loaded.drafts.active:
            return
        off = failed_while_drafting(state.draft_failure)
        drafts = DraftStatus(active=False, reason=off.reason.value, detail=off.detail)
        self.loaded = msgspec.structs.replace(self.loaded, drafts=drafts)
        self._tell_drafting(drafts)

    def _tells_of_clearing(self, state: EngineState) -> bool:
        """The step of a busy worker may have ended before it was asked."""
        return state.cache_bytes == 0 or not self._streams

    def _note_grant(self, granted: Granted) -> None:
        if self.loaded is not None:
            self.loaded = msgspec.structs.replace(self.loaded, n_ctx=granted.n_ctx, pool_tokens=granted.pool_tokens)
        for epoch, asked in self._asked.items():  # an older one has been overtaken
            if epoch <= granted.epoch and not asked.done():
                asked.set_result(granted.accepted or epoch < granted.epoch)

    def _forget_worker(self) -> None:
        """Of a worker that has ended: it holds nothing, and owes no answer."""
        self._runner, self._untold, self.engine = None, None, EngineState()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(True)

    def _deliver(self, event: Event) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return
        if isinstance(event, Entered):
            stream.entries += 1
            return
        stream.begun = True
        match event:
            case Delta():
                stream.told_tokens += len(event.token_ids)
                self.totals.tokens += len(event.token_ids)
            case Finished():
                self._watch_drafts(event)
                # The token that ends an answer is generated, and part of no delta.
                self.totals.tokens += event.completion_tokens - stream.told_tokens
                self.totals.prompt_tokens += event.prompt_tokens
                self._close(event.request_id)
            case Failed():
                self.totals.failures += 1
                self._close(event.request_id)
            case Notice():
                self.totals.parks += event.kind == "preempted"
                self.totals.recomputes += event.kind == "recomputed"
        stream.events.put_nowait(event)

    def _watch_drafts(self, event: Finished) -> None:
        """Says so, once in a row, when a head that is active has drafted nothing for a whole answer."""
        if self.loaded is None or not self.loaded.drafts.active or event.completion_tokens < DRAFTABLE_TOKENS:
            return
        drafted = bool(event.accepted + event.rejected)
        if not drafted and not self._undrafted:
            state = None if self.engine.drafts is None else self.engine.drafts.controller
            log.warning("mtp_drafted_nothing model=%s request=%s controller=%s", self.id, event.request_id, state)
        self._undrafted = not drafted

    def _close(self, request_id: str) -> None:
        del self._streams[request_id]
        self.used_at = self._clock()
        if not self._streams:
            self._empty.set()

    async def _launch(self) -> None:
        self._status = "loading"
        self._runner = self._create_runner()
        self.loaded = await self._runner.start(self.spec, self._on_report)
        self.engine = EngineState(active_bytes=self.loaded.active_bytes)
        self._status, self.reason = "ready", None
        self._heard_at = self._clock()
        log.info(
            "worker_ready model=%s pid=%s device=%s n_ctx=%d load_s=%.2f",
            self.id, self._runner.pid, self.loaded.device, self.loaded.n_ctx, self.loaded.load_s,
        )  # fmt: skip
        self._tell_drafting(self.loaded.drafts)
        if self._untold is not None:
            self._runner.send(self._untold)
            self._untold = None
        for stream in self._streams.values():
            self._send(Submit(stream.request))
            if stream.held:
                self._send(Hold(stream.request.request_id, True))

    def _tell_drafting(self, drafts: DraftStatus) -> None:
        """A warning where a head that is there, or may be, is not used; no news where there is none."""
        if drafts.active:
            log.info("mtp_active model=%s block_size=%s", self.id, drafts.block_size)
            return
        expected = self.spec.drafts is not None and self.spec.drafts.declaration != Declaration.ABSENT
        level = logging.WARNING if expected else logging.INFO
        log.log(level, "mtp_inactive model=%s reason=%s detail=%r", self.id, drafts.reason, drafts.detail)

    async def _keep_alive(self) -> None:
        """Waits for the worker's end and replaces it, for as long as that makes sense. A task boundary: a slot that
        is no longer watched over must not look ready."""
        try:
            while self._runner is not None:
                how = await self._runner.wait_ended()
                await self._runner.stop()
                self._mourn(how)
                if not await self._relaunch(how):
                    return
        except Exception as error:
            log.exception("worker_watch_failed model=%s", self.id)
            self._give_up(f"its worker is no longer watched over ({type(error).__name__})")

    def _mourn(self, how: str) -> None:
        """Ends the streams that cannot start again."""
        self._status = "loading"
        self._forget_worker()
        self.totals.restarts += 1
        self._deaths = [at for at in self._deaths if self._clock() - at < QUICK_DEATHS_S] + [self._clock()]
        lost = [one for one in self._streams.values() if one.begun or one.entries >= ENTRIES]
        log.error("worker_died model=%s how=%r lost=%d resubmitted=%d", self.id, how, len(lost), self.open - len(lost))
        for stream in lost:
            failure = wire.internal_error(f"The worker serving {self.id} ended ({how}).", "worker_died", True)
            self._deliver(Failed(stream.request.request_id, failure))

    async def _relaunch(self, how: str) -> bool:
        while len(self._deaths) < QUICK_DEATHS:
            await asyncio.sleep(BACKOFF_S[min(len(self._deaths), len(BACKOFF_S)) - 1])
            try:
                await self._launch()
            except SelfTestFailed as error:
                self._nonsense = True
                self._give_up(str(error))
                return False
            except (ModelError, WorkerError) as error:
                log.error("worker_restart_failed model=%s error=%s", self.id, error)
                how = str(error)
                self._forget_worker()
                self._deaths.append(self._clock())
            else:
                self._on_replaced()
                return True
        self._give_up(f"its worker keeps dying ({how})")
        return False

    def _give_up(self, reason: str) -> None:
        """For as long as its cool-off lasts, or until the model is loaded by hand."""
        self._forget_worker()
        self.loaded = None
        self._fail(reason)
        self._end_all(self.refusal)
        self._on_failed(self._nonsense)

    def _fail(self, reason: str) -> None:
        self._status, self.reason = "failed", reason
        self._cool_off = self._cool_off.after_failure(self._clock())
        self.totals.given_up += 1
        log.error("slot_failed model=%s reason=%s retry_in_s=%s", self.id, reason, self.retry_in_s)

    async def _watch(self) -> None:
        """Ends a worker whose engine has gone silent; `_keep_alive` then replaces it."""
        while True:
            await asyncio.sleep(min(WATCH_S, self._hang_s / 4))
            if self.status == "ready" and self._streams and self._silence() > self._hang_s:
                log.error("worker_hung model=%s silent_s=%.1f", self.id, self._silence())
                assert self._runner is not None
                self._runner.kill()

    def _silence(self) -> float:
        return self._clock() - self._heard_at

    def _end_all(self, failure: wire.Failure) -> None:
        for request_id in list(self._streams):
            self._deliver(Failed(request_id, failure))

    @property
    def _facts(self) -> Loaded:
        if self.loaded is None:
            raise RequestFailed(wire.unavailable(f"The model {self.id} is still loading.", "slot_state"))
        return self.loaded


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + RATE_SMOOTHING * (new - old)
