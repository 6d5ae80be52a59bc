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
from queue import Empty, SimpleQueue
from threading import Thread

import msgspec

from provider import collector
from provider.api import wire
from provider.building import build, limit
from provider.engine import Engine, Step
from provider.errors import ConfigError, ExactUnavailable, ModelError, ModelUnsupported, SelfTestFailed
from provider.generation import Failed
from provider.pipe import (
    Cancel,
    ClearCache,
    Command,
    Describe,
    FrameReader,
    FromWorker,
    Grant,
    Granted,
    Hold,
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
from provider.telling import engine_state

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
"""As the parent's, whose stderr this process shares."""
READ_BYTES = 2**16
PULSE_S = 1.0
"""How often an engine that only waits, for a copy or for the end of a park, says that it is there."""
RESTS_AFTER_S = 30.0
"""Without a request. Long enough that a conversation's pauses cost nothing."""
_commands = msgspec.msgpack.Decoder(ToWorker)


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
        send(load_failed(error))
        return
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        send(LoadFailed(f"{spec.directory} cannot be loaded ({told}): the log says more.", False))
        raise
    collector.freeze()
    send(loaded)
    _loop(engine, inbox, send)


def load_failed(error: ModelError | ConfigError) -> LoadFailed:
    inexact = error if isinstance(error, ExactUnavailable) else None
    return LoadFailed(
        str(error),
        unsupported=isinstance(error, ModelUnsupported),
        self_test=isinstance(error, SelfTestFailed),
        exact=inexact is not None,
        exact_cause=None if inexact is None else inexact.cause,
        exact_remedy=None if inexact is None else inexact.remedy,
    )


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
            limit(engine.backend, asked.kv_pool_bytes, asked.activation_reserve_bytes)
            return settled(engine)


def _granted(engine: Engine, epoch: int, accepted: bool) -> Granted:
    scheduler = engine.scheduler
    return Granted(epoch=epoch, accepted=accepted, n_ctx=scheduler.n_ctx, pool_tokens=scheduler.pool.tokens)


def main() -> None:
    # The parent's Ctrl-C is not the worker's: the parent drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        serve(sock)


if __name__ == "__main__":
    main()
