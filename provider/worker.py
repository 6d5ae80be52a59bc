"""The process an engine lives in: commands arrive over a socket, one report leaves per step.

Started as `python -m provider.worker FD` by provider.runner. It ends itself when the socket closes, so that a killed
parent leaves nothing holding weights. Two threads: a reader that only fills the inbox, and the engine's loop.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import msgspec
import psutil

from provider import collector
from provider.api import wire
from provider.backends.base import Backend, BackendFacts
from provider.backends.sim import BLOCK_TOKENS, SimBackend
from provider.backends.sim_timing import Clock, Device, WallClock, device_named_in
from provider.engine import Engine, Step
from provider.errors import ConfigError, ExactUnavailable, ModelError, ModelUnsupported, SelfTestFailed
from provider.exactness import attach_exact
from provider.generation import Failed
from provider.grammar.compiler import Guides
from provider.heads import Head, attach_head, choose_head, inactive
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.controller import DepthController
from provider.mtp.policy import Off, Reason
from provider.parking.files import ParkFiles, sweep
from provider.parking.lot import Lot
from provider.parking.mover import Lane, ThreadMover
from provider.pipe import (
    Cancel,
    ClearCache,
    Command,
    CopyState,
    Describe,
    DraftState,
    DraftStatus,
    EngineState,
    ExactReport,
    FrameReader,
    FromWorker,
    Grant,
    Granted,
    Hold,
    Loaded,
    LoadFailed,
    LoadSpec,
    Report,
    SequenceState,
    Stop,
    Submit,
    ToWorker,
    pack,
)
from provider.preparing import Prepared, Preparing
from provider.scheduler.pool import Pool
from provider.scheduler.prefilling import SHARED, SOLO
from provider.scheduler.scheduler import Limits, Scheduler
from provider.text import Decode

log = logging.getLogger(__name__)

READ_BYTES = 2**16
PULSE_S = 1.0
"""How often an engine that only waits, for a copy or for the end of a park, says that it is there."""
RESTS_AFTER_S = 30.0
"""Without a request. Long enough that a conversation's pauses cost nothing."""
_commands = msgspec.msgpack.Decoder(ToWorker)


def build(spec: LoadSpec, clock: Clock | None = None) -> tuple[Engine, Loaded]:
    """Loads the model and puts an engine around it. Raises ModelError for what cannot be served.

    `clock`: what a simulated device spends its time on; the wall's by default.
    """
    started = time.monotonic()
    directory = Path(spec.directory)
    tokenizer = ModelTokenizer(directory)
    head = choose_head(directory, spec.drafts)
    backend, drafts = _create_backend(spec, clock or WallClock(), head, tokenizer)
    lanes_in = None if spec.lanes_directory is None else Path(spec.lanes_directory)
    exact = attach_exact(backend, directory, spec.exact, lanes_in)
    engine = engine_around(spec, backend, tokenizer.decode, clock)
    return engine, loaded_of(engine, drafts, exact, time.monotonic() - started)


def engine_around(spec: LoadSpec, backend: Backend, decode: Decode, clock: Clock | None = None) -> Engine:
    """Raises ModelError where the memory left for keys and values is too little."""
    facts = backend.facts
    pool = Pool(
        tokens=_pool_tokens(spec, facts.kv_bytes_per_token),
        bytes=spec.kv_pool_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        state_bytes=facts.state_bytes,
        block_tokens=facts.block_tokens,
        tokens_follow_bytes=spec.kv_pool_tokens is None,
        padding_states=facts.padding_states,
    )
    prefilling = SHARED if facts.lane_rows is None else SOLO
    limits = Limits(spec.max_concurrent, spec.context_length or facts.context_length, prefilling=prefilling)
    scheduler = Scheduler(limits, pool, None if spec.park is None else spec.park.knobs.rules)
    if scheduler.n_ctx < 2:
        raise ModelError(
            f"{spec.directory}: the memory left for keys and values ({spec.kv_pool_bytes} bytes) does not hold one "
            "short sequence: free memory, or serve a smaller model."
        )
    _limit(backend, spec.kv_pool_bytes, spec.activation_reserve_bytes)
    depth = DepthController(facts.max_drafts) if facts.max_drafts else None
    now = WallClock().now if clock is None else clock.now
    return Engine(scheduler, backend, decode, depth, now)


def loaded_of(
    engine: Engine, drafts: DraftStatus, exact: ExactReport, load_s: float, baseline_bytes: int | None = None
) -> Loaded:
    """What a parent is told of an engine that has just been made. `baseline_bytes` None: what this process takes."""
    facts, memory = engine.backend.facts, engine.backend.memory()
    if baseline_bytes is None:
        baseline_bytes = _baseline_bytes(memory.active_bytes + memory.cache_bytes)
    return Loaded(
        n_ctx=engine.scheduler.n_ctx,
        pool_tokens=engine.scheduler.pool.tokens,
        vocab_size=facts.vocab_size,
        weight_bytes=facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        state_bytes=facts.state_bytes,
        device=facts.device,
        load_s=load_s,
        active_bytes=memory.active_bytes,
        baseline_bytes=baseline_bytes,
        drafts=drafts,
        exact=exact,
    )


def engine_state(engine: Engine) -> EngineState:
    counts, memory = engine.scheduler.counts(), engine.backend.memory()
    return EngineState(
        running=counts.running,
        prefill=counts.prefill,
        waiting=counts.waiting,
        parked=counts.parked,
        moving=counts.moving,
        tokens_used=counts.tokens_used,
        tokens_queued=counts.tokens_queued,
        active_bytes=memory.active_bytes,
        cache_bytes=memory.cache_bytes,
        peak_bytes=memory.peak_bytes,
        saves=_copies(engine, Lane.SAVE),
        restores=_copies(engine, Lane.RESTORE),
        drafts=_draft_state(engine),
    )


def _copies(engine: Engine, lane: Lane) -> CopyState:
    moved = engine.rates.moved[lane]
    return CopyState(count=moved.count, failed=moved.failed, size_bytes=moved.size_bytes, seconds=moved.seconds)


def _draft_state(engine: Engine) -> DraftState | None:
    depth, seconds = engine.depth, engine.backend.draft_seconds
    if not isinstance(depth, DepthController):
        return None
    return DraftState(
        rounds=engine.tally.rounds,
        drafted=engine.tally.drafted,
        accepted=engine.tally.accepted,
        draft_s=seconds.draft,
        verify_s=seconds.verify,
        bookkeeping_s=seconds.bookkeeping,
        parked_s=depth.parked_s,
        controller=depth.state.value,
        depth_tps=depth.rates,
    )


def apply(engine: Engine, command: Command) -> list[FromWorker]:
    """One command -> the reports it causes at once. Stop is the caller's."""
    match command:
        case Submit(request):
            events = engine.submit(request)
            return [Report(events)] if events else []
        case Cancel(request_id):
            engine.cancel(request_id)
            return [Report([], state=engine_state(engine))]
        case Hold(request_id, held):
            engine.hold(request_id, held)
            return []
        case Describe():
            sequences = [
                SequenceState(
                    request_id=one.id,
                    state=one.state.value,
                    prompt_tokens=one.prompt_tokens,
                    emitted=one.emitted,
                    computed=one.computed,
                    recomputes=one.recomputes,
                )
                for one in engine.scheduler.states()
            ]
            return [Report([], state=engine_state(engine), sequences=sequences)]
        case Grant():
            return _grant(engine, command)
        case ClearCache():
            engine.backend.clear_cache()
            return [Report([], state=engine_state(engine))]
        case Stop():
            return []


def settled(engine: Engine) -> list[FromWorker]:
    """What is to be said once a grant has come into force."""
    epoch = engine.settled_grant()
    return [] if epoch is None else [_granted(engine, epoch, accepted=True), Report([], state=engine_state(engine))]


def run_step(
    engine: Engine,
    send: Callable[[FromWorker], None],
    now: Callable[[], float] = time.monotonic,
    quiet: bool = False,
) -> bool:
    """One engine step; its reports go to `send` as they come about. False when there was nothing to do but wait; of
    that, `quiet` says nothing."""
    started = now()
    step = engine.step(lambda events: send(Report(list(events))))
    if step.plan or step.events or not quiet:
        _tell(engine, step, now() - started, send)
    for message in settled(engine):
        send(message)
    return bool(step.plan)


def _tell(engine: Engine, step: Step, step_s: float, send: Callable[[FromWorker], None]) -> None:
    send(
        Report(
            step.events,
            state=engine_state(engine),
            step_s=step_s,
            decoded=step.drawn,
            prefilled=sum(chunk.count for chunk in step.plan.prefill),
        )
    )


class Send:
    """Writes reports to the socket; blocking, and called by the engine's thread only."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __call__(self, message: FromWorker) -> None:
        self._sock.sendall(pack(message))


def serve(sock: socket.socket) -> None:
    inbox: SimpleQueue[ToWorker | Prepared] = SimpleQueue()
    Thread(target=_read, args=(sock, inbox), daemon=True).start()
    send = Send(sock)
    spec = inbox.get()
    if not isinstance(spec, LoadSpec):
        raise TypeError(f"the first command must be a LoadSpec, not {type(spec).__name__}")
    try:
        engine, loaded = build(spec)
    except (ModelError, ConfigError) as error:
        kinds = (isinstance(error, kind) for kind in (ModelUnsupported, SelfTestFailed, ExactUnavailable))
        send(LoadFailed(str(error), *kinds))
        return
    except Exception as error:
        send(LoadFailed(f"{spec.directory} cannot be loaded: {type(error).__name__}: {error}", False))
        raise
    collector.freeze()
    send(loaded)
    _loop(engine, inbox, send)


def _loop(engine: Engine, inbox: "SimpleQueue[ToWorker | Prepared]", send: Send) -> None:
    preparing = Preparing(engine.backend.prepare, inbox.put)
    stepped, spoke_s = True, time.monotonic()
    while True:
        for command in chain(_first_command(engine, inbox, stepped), _drain(inbox)):
            if isinstance(command, Stop):
                engine.backend.close()
                return
            assert not isinstance(command, LoadSpec), "a worker serves one model for life"
            for report in _obey(engine, command, preparing):
                send(report)
        if engine.busy:
            quiet = time.monotonic() - spoke_s < PULSE_S
            stepped = run_step(engine, send, quiet=quiet)
            spoke_s = time.monotonic() if stepped or not quiet else spoke_s


def _obey(engine: Engine, command: Command | Prepared, preparing: Preparing) -> list[FromWorker]:
    """As `apply`; a request with a grammar waits for that outside the engine."""
    match command:
        case Submit(request) if request.sampling.grammar is not None:
            preparing.begin(request)
            return []
        case Prepared(request_id, failure):
            held = preparing.take(request_id)
            if held is not None and failure is not None:
                return [Report([Failed(request_id, wire.grammar_failed(failure))])]
            return [] if held is None else apply(engine, Submit(held))
        case Cancel(request_id):
            preparing.drop(request_id)
            return apply(engine, command)
        case _:
            return apply(engine, command)


def _first_command(
    engine: Engine, inbox: "SimpleQueue[ToWorker | Prepared]", stepped: bool
) -> list[ToWorker | Prepared]:
    """Waits for one when there is nothing else to do: until the next step may find something, if anybody is here."""
    if not engine.busy:
        return [wait_for_work(engine, inbox)]
    if stepped:
        return []
    try:
        return [inbox.get(timeout=engine.idle_s())]
    except Empty:
        return []


def wait_for_work(
    engine: Engine, inbox: "SimpleQueue[ToWorker | Prepared]", rests_after_s: float = RESTS_AFTER_S
) -> ToWorker | Prepared:
    """The next command; when it is long in coming, the system gets meanwhile what was only kept ready."""
    try:
        return inbox.get(timeout=rests_after_s)
    except Empty:
        engine.backend.rest(True)
    try:
        return inbox.get()
    finally:
        engine.backend.rest(False)


def _drain(inbox: "SimpleQueue[ToWorker | Prepared]") -> Iterator[ToWorker | Prepared]:
    while True:
        try:
            yield inbox.get_nowait()
        except Empty:
            return


def _read(sock: socket.socket, inbox: "SimpleQueue[ToWorker | Prepared]") -> None:
    """Fills the inbox; when the parent's end closes, ends the process at once, even in the middle of a step."""
    frames = FrameReader()
    while True:
        try:
            data = sock.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        for frame in frames.feed(data):
            inbox.put(_commands.decode(frame))


def _grant(engine: Engine, asked: Grant) -> list[FromWorker]:
    """An older push that comes late says nothing and changes nothing."""
    match engine.grant(asked.epoch, asked.kv_pool_bytes):
        case None:
            return []
        case False:
            return [_granted(engine, asked.epoch, accepted=False)]
        case True:
            _limit(engine.backend, asked.kv_pool_bytes, asked.activation_reserve_bytes)
            return settled(engine)


def _granted(engine: Engine, epoch: int, accepted: bool) -> Granted:
    scheduler = engine.scheduler
    return Granted(epoch=epoch, accepted=accepted, n_ctx=scheduler.n_ctx, pool_tokens=scheduler.pool.tokens)


def _limit(backend: Backend, kv_pool_bytes: int | None, activation_reserve_bytes: int | None) -> None:
    if kv_pool_bytes is not None and activation_reserve_bytes is not None:
        # What the next pass can take is kept ready, within what passes were measured to take: freed keys and values
        # would else stay here, and beside the process itself they are more than the cap allows.
        backend.limit(
            backend.facts.weight_bytes + kv_pool_bytes + activation_reserve_bytes, activation_reserve_bytes // 2
        )


def _baseline_bytes(arrays_bytes: int) -> int:
    return max(0, int(psutil.Process().memory_info().rss) - arrays_bytes)


def _pool_tokens(spec: LoadSpec, kv_bytes_per_token: int) -> int:
    if spec.kv_pool_tokens is not None:
        return spec.kv_pool_tokens
    if spec.kv_pool_bytes is None or kv_bytes_per_token == 0:
        return sys.maxsize
    return spec.kv_pool_bytes // kv_bytes_per_token


def _create_backend(
    spec: LoadSpec, clock: Clock, head: Head | Off, tokenizer: ModelTokenizer
) -> tuple[Backend, DraftStatus]:
    directory = Path(spec.directory)
    tiers = None if spec.park is None else spec.park.tiers()
    match spec.backend:
        case "mlx":
            from provider.backends.mlx.backend import MlxBackend
            from provider.backends.mlx.park_codec import MlxCodec

            guides = Guides(tokenizer, read_checkpoint(directory).vocab_size)
            guided = guides.begin()
            backend = MlxBackend(directory)
            backend.guide_with(guides.guide)
            guided.join()
            files = None if spec.park is None else _park_files(Path(spec.park.directory))
            if tiers is not None and files is not None:
                backend.park_with(Lot(tiers, files, MlxCodec(), ThreadMover()))
            return backend, attach_head(backend, head, tokenizer.encode)
        case "sim":
            device = device_named_in(os.environ)
            reason = (
                head if isinstance(head, Off) else Off(Reason.ENGINE_INACTIVE, "the simulated backend drafts nothing")
            )
            facts = sim_facts(read_checkpoint(directory), device)
            simulated = SimBackend(facts, device, clock, tiers=tiers)
            simulated.guide_with(Guides(tokenizer, facts.vocab_size).guide)
            return simulated, inactive(reason)
        case _:
            raise ConfigError(f"backend {spec.backend!r} is not known; known: mlx, sim")


def _park_files(directory: Path) -> ParkFiles | None:
    """What processes that have ended left there is removed. None where nothing can be written."""
    try:
        sweep(directory)
        return ParkFiles(directory)
    except OSError as error:
        log.warning("park_directory_unusable path=%s reason=%s", directory, error)
        return None


def sim_facts(checkpoint: Checkpoint, device: Device | None) -> BackendFacts:
    return BackendFacts(
        device="sim" if device is None else f"sim:{device.name}",
        vocab_size=checkpoint.vocab_size,
        context_length=checkpoint.context_length,
        weight_bytes=checkpoint.size_bytes,
        kv_bytes_per_token=checkpoint.kv_bytes_per_token,
        state_bytes=checkpoint.state_bytes,
        block_tokens=BLOCK_TOKENS,
    )


def main() -> None:
    # The parent's Ctrl-C is not the worker's: the parent drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        serve(sock)


if __name__ == "__main__":
    main()
