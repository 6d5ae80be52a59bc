"""Grammars are tried in a process of their own first: what hangs, takes all memory or breaks there breaks nothing else.

Schemas that refer to one another in a long row are compiled by recursion, which no bound on work ends before the stack.
The process has half of the stack that a worker's compiling thread has, so what passes here passes there.
"""

import os
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, LifoQueue
from selectors import EVENT_READ, DefaultSelector
from typing import IO

from provider.api.wire import unavailable
from provider.errors import GrammarError, RequestFailed

PROCESSES = 2
DEADLINE_S = 5.0
"""A grammar as large as any that is let in takes about 1 s on a machine at rest."""
WAIT_S = 2.0
"""For a process that is idle. Most take milliseconds: who waits longer stands behind those who try what is slow, and
holds up others in turn."""
LIMIT_BYTES = 2 * 2**30
REMEMBERED = 256
HEADER_BYTES = 4


class Sandbox:
    """Owner: a surface. `check` may be called from several threads; its processes, started when they are first needed,
    end with this object or with this process."""

    def __init__(self, deadline_s: float = DEADLINE_S, wait_s: float = WAIT_S) -> None:
        self._deadline_s = deadline_s
        self._wait_s = wait_s
        self._idle: LifoQueue[_Process | None] = LifoQueue()
        for _ in range(PROCESSES):
            self._idle.put(None)
        self._known: OrderedDict[str, str] = OrderedDict()
        self._finalizer = weakref.finalize(self, _end_all, self._idle)

    def check(self, grammar: str) -> None:
        """Raises GrammarError for what no model could follow, or what takes more than it may; RequestFailed where too
        many ask at the same time."""
        reason = self._known.get(grammar)
        if reason is None:
            reason = self._known[grammar] = self._ask(grammar)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        if reason:
            raise GrammarError(reason)

    def close(self) -> None:
        self._finalizer()

    def _ask(self, grammar: str) -> str:
        with self._process() as process:
            return process.ask(grammar.encode(), self._deadline_s)

    @contextmanager
    def _process(self) -> "Iterator[_Process]":
        try:
            process = self._idle.get(timeout=self._wait_s)
        except Empty:
            message = "Too many schemas are being tried at the same time: try again."
            raise RequestFailed(unavailable(message, "schemas_busy")) from None
        try:
            if process is None or not process.alive:
                process = _Process()
            yield process
        finally:
            self._idle.put(process)


class _Process:
    """Owner: whoever has taken it from the idle ones."""

    def __init__(self) -> None:
        # -P: a directory named `provider` in the working directory must not be taken for this package.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "provider.grammar.sandboxed", str(LIMIT_BYTES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        self.alive = True

    def ask(self, grammar: bytes, deadline_s: float) -> str:
        """What is wrong with it; empty: nothing. Raises GrammarError where time ran out, which next time it may not."""
        until_s = time.monotonic() + deadline_s
        try:
            self._write(len(grammar).to_bytes(HEADER_BYTES, "big") + grammar)
            size = int.from_bytes(self._read(HEADER_BYTES, until_s), "big")
            return self._read(size, until_s).decode()
        except TimeoutError:
            self.end()
            raise GrammarError(f"it takes longer than {deadline_s:g} s to compile") from None
        except OSError:
            self.end()
            return "it takes more memory or depth to compile than it may"

    def end(self) -> None:
        self.alive = False
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._in, self._out):
            pipe.close()

    @property
    def _in(self) -> IO[bytes]:
        assert self._popen.stdin is not None
        return self._popen.stdin

    @property
    def _out(self) -> IO[bytes]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._in.write(data) or 0 :]

    def _read(self, size: int, until_s: float) -> bytes:
        parts = bytearray()
        with DefaultSelector() as selector:
            selector.register(self._out, EVENT_READ)
            while len(parts) < size:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise TimeoutError
                part = os.read(self._out.fileno(), size - len(parts))
                if not part:
                    raise ConnectionError("the process has ended")
                parts += part
        return bytes(parts)


def _end_all(idle: "LifoQueue[_Process | None]") -> None:
    while True:
        try:
            process = idle.get_nowait()
        except Empty:
            return
        if process is not None:
            process.end()
