"""Requests that wait for their grammar to be compiled, so that the engine's loop never does."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from provider.errors import GrammarError
from provider.generation import GenerationRequest, Sampling

THREADS = 2
"""So that one slow grammar does not hold up every other."""
STACK_BYTES = 16 * 2**20
"""More than what a grammar passed with when it was tried (provider.grammar.sandboxed), by a margin."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """`failure`: the grammar cannot be used."""

    request_id: str
    failure: str | None = None


class Preparing:
    """Owner: the engine's loop. `prepare` is called on threads of this one's, `tell` from there."""

    def __init__(self, prepare: Callable[[Sampling], None], tell: Callable[[Prepared], None]) -> None:
        self._prepare = prepare
        self._tell = tell
        self._held: dict[str, GenerationRequest] = {}
        self._asked: SimpleQueue[GenerationRequest] = SimpleQueue()
        before = threading.stack_size(STACK_BYTES)
        for _ in range(THREADS):
            threading.Thread(target=self._work, name="grammar", daemon=True).start()
        threading.stack_size(before)

    def begin(self, request: GenerationRequest) -> None:
        """`Prepared` is told of it, sooner or later."""
        self._held[request.request_id] = request
        self._asked.put(request)

    def drop(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        self._held.pop(request_id, None)

    def take(self, request_id: str) -> GenerationRequest | None:
        """None: it has been dropped meanwhile."""
        return self._held.pop(request_id, None)

    def _work(self) -> None:
        while True:
            self._run(self._asked.get())

    def _run(self, request: GenerationRequest) -> None:
        try:
            self._prepare(request.sampling)
            self._tell(Prepared(request.request_id))
        except GrammarError as error:
            self._tell(Prepared(request.request_id, str(error)))
        except Exception as error:
            self._tell(Prepared(request.request_id, f"{type(error).__name__}: {error}"))
