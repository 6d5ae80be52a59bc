"""The parent's handle on an engine. ProcessRunner keeps it in a worker process; InlineRunner, in this one, behaves
the same (same vocabulary, same tests) and is what simulations use."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from provider.backends.sim_timing import LeadingClock
from provider.engine import Engine
from provider.errors import ExactUnavailable, ModelError, ModelUnsupported, SelfTestFailed, WorkerError
from provider.pipe import Command, FrameReader, FromWorker, Granted, Loaded, LoadFailed, LoadSpec, Report, Stop, pack

log = logging.getLogger(__name__)

OnReport = Callable[[Report | Granted], None]
Build = Callable[[LoadSpec, LeadingClock], tuple[Engine, Loaded]]
"""Loads a model and puts an engine around it. Raises ModelError."""
READ_BYTES = 2**18
LAST_WORDS_S = 1.0
"""Within that a process ends whose socket has closed: it is not killed before how it ended can be told."""


class Runner(Protocol):
    """One engine's life: start once, send commands, `wait_ended` returns when it is over for whatever reason."""

    @property
    def pid(self) -> int | None: ...

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        """Raises ModelError if the model cannot be served, WorkerError if the worker ended before it could say."""
        ...

    def send(self, command: Command) -> None:
        """Never blocks; ignored once the worker has ended."""
        ...

    async def wait_ended(self) -> str:
        """Returns how it ended, in words."""
        ...

    async def stop(self, grace_s: float = 5.0) -> None:
        """Asks the worker to end, then makes sure. Idempotent."""
        ...

    def kill(self) -> None: ...


class ProcessRunner:
    """A spawned worker (never forked: MLX and asyncio do not survive a fork), one socket between.

    The worker gets a session of its own, so that a terminal's Ctrl-C reaches the parent alone.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._loaded: asyncio.Future[Loaded] | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        try:
            ours = await self._spawn()
        except OSError as error:
            raise WorkerError(f"the worker process cannot be started: {error}") from error
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._loaded = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader, on_report))
        self._writer.write(pack(spec))
        try:
            return await self._loaded
        except WorkerError as error:
            await self.stop(grace_s=LAST_WORDS_S)
            raise WorkerError(f"{error} ({await self.wait_ended()})") from error
        except BaseException:
            await self.stop(grace_s=0)
            raise

    async def _spawn(self) -> socket.socket:
        """Our end of the socket between."""
        ours, theirs = socket.socketpair()
        try:
            # -P: a directory named `provider` in the working directory must not be taken for this package.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "provider.worker", str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr.fileno(),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def send(self, command: Command) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(command))

    async def wait_ended(self) -> str:
        assert self._process is not None, "not started"
        code = await self._process.wait()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        return f"exit status {code}" if code >= 0 else f"signal {-code}"

    async def stop(self, grace_s: float = 5.0) -> None:
        if self._process is None:
            return
        self.send(Stop())
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
        await self.wait_ended()
        if self._writer is not None:
            self._writer.close()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _read(self, reader: asyncio.StreamReader, on_report: OnReport) -> None:
        frames, decoder = FrameReader(), msgspec.msgpack.Decoder(FromWorker)
        assert self._loaded is not None
        try:
            while data := await reader.read(READ_BYTES):
                for frame in frames.feed(data):
                    _deliver(decoder.decode(frame), self._loaded, on_report)
        except ConnectionError:
            pass
        finally:
            if not self._loaded.done():
                self._loaded.set_exception(WorkerError("the worker ended while it was loading the model"))


class InlineRunner:
    """The same engine in this process: a task runs a step, then lets everyone else run.

    A simulated device's time is waited here, where it delays nobody else.
    """

    def __init__(self, build: Build | None = None) -> None:
        """`build` None: as a worker does."""
        self._build = build
        self._inbox: deque[Command] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return os.getpid()

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        from provider.building import build

        clock = LeadingClock()
        engine, loaded = (self._build or build)(spec, clock)

        async def loop() -> None:
            from provider.worker import apply, run_step

            reports: deque[FromWorker] = deque()
            while True:
                if not engine.busy and not self._inbox:
                    self._wake.clear()
                    await self._wake.wait()
                while self._inbox:
                    command = self._inbox.popleft()
                    if isinstance(command, Stop):
                        engine.backend.close()
                        return
                    reports.extend(apply(engine, command))
                stepped = run_step(engine, reports.append, clock.now) if engine.busy else True
                if stepped:
                    await asyncio.sleep(clock.settle())
                else:
                    await self._nap(engine.idle_s())
                while reports:
                    _deliver(reports.popleft(), None, on_report)

        self._task = asyncio.create_task(loop())
        return loaded

    async def _nap(self, longest_s: float) -> None:
        """Until there is a command, or the next step may find something to do."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._inbox else longest_s):
                await self._wake.wait()

    def send(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake.set()

    async def wait_ended(self) -> str:
        assert self._task is not None, "not started"
        await asyncio.wait([self._task])
        if self._task.cancelled():
            return "killed"
        error = self._task.exception()
        return "stopped" if error is None else f"{type(error).__name__}: {error}"

    async def stop(self, grace_s: float = 5.0) -> None:
        if self._task is not None:
            self.send(Stop())
            await asyncio.wait([self._task], timeout=grace_s)
            self.kill()

    def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _deliver(message: FromWorker, loaded: "asyncio.Future[Loaded] | None", on_report: OnReport) -> None:
    match message:
        case Report() | Granted():
            on_report(message)
        case Loaded():
            if loaded is not None and not loaded.done():
                loaded.set_result(message)
        case LoadFailed():
            error = _load_error(message)
            if loaded is not None and not loaded.done():
                loaded.set_exception(error)


def _load_error(failed: LoadFailed) -> ModelError:
    if failed.self_test:
        return SelfTestFailed(failed.message)
    if failed.exact:
        return ExactUnavailable(failed.message, failed.exact_cause, failed.exact_remedy)
    return ModelUnsupported(failed.message) if failed.unsupported else ModelError(failed.message)
