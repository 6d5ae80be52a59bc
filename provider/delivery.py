"""One request's answer on its way to the coordinator: kept until it has arrived, over however many connections."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from provider.api.wire import Failure, internal_error
from provider.errors import RequestFailed
from provider.protocol import MAX_FRAME_BYTES, InferenceAccepted, InferenceError, Wire, encode
from provider.replay import Replay, size_of
from provider.wire_limits import MOST_MESSAGE

REPLAY_LOST = internal_error(
    "The provider no longer has the part of this answer that was lost with its connection.", "replay_lost"
)
TOO_LARGE = internal_error(
    f"The answer does not fit into a frame of {MAX_FRAME_BYTES} bytes: ask for less, or stream it.", "answer_too_large"
)


class Delivery:
    """Filled by the request's task, emptied by whichever connection there is. Lives on one event loop."""

    def __init__(self, request_id: str, ready: Callable[["Delivery"], None], replay: Replay | None = None) -> None:
        """`ready` is called whenever there is something to send."""
        self.request_id = request_id
        self.ended = False
        """The last frame is in."""
        self._ready = ready
        self._replay = replay or Replay()
        self._accepted = False
        self._acceptance_due = False
        self._changed = asyncio.Event()

    @property
    def next_seq(self) -> int:
        return self._replay.next_seq

    @property
    def arrived(self) -> bool:
        """All of it, the last frame included: nobody will ask for it again."""
        return self.ended and self._replay.first_seq == self._replay.next_seq

    @property
    def pending(self) -> bool:
        return self._acceptance_due or self._replay.pending

    def accept(self) -> None:
        self._accepted = self._acceptance_due = True
        self._ready(self)

    async def say(self, message: Wire, hold: Callable[[bool], None]) -> None:
        """`message` bears the number `next_seq`. Waits for room; meanwhile `hold` keeps the sequences from going on.
        Raises RequestFailed for what no socket could carry."""
        frame = encode(message)
        size_bytes = size_of(frame)
        if size_bytes > MAX_FRAME_BYTES:
            raise RequestFailed(TOO_LARGE)
        if not self._replay.fits(size_bytes):
            with _held(hold):
                await self._until_light(size_bytes)
        self._append(frame)

    def end(self, message: Wire) -> None:
        """The last frame always finds room, and nothing is said after it. Raises RequestFailed as `say` does."""
        frame = encode(message)
        if size_of(frame) > MAX_FRAME_BYTES:
            raise RequestFailed(TOO_LARGE)
        if not self.ended:
            self.ended = True
            self._append(frame)

    def fail(self, failure: Failure) -> None:
        detail = {"type": failure.type, "param": failure.param, **failure.detail}
        if failure.retry_after_s is not None:
            detail["retry_after_s"] = failure.retry_after_s
        self.end(
            InferenceError(
                request_id=self.request_id,
                seq=self.next_seq,
                status=failure.status,
                code=failure.code,
                message=failure.message[:MOST_MESSAGE],
                retryable=failure.retryable,
                detail=detail,
            )
        )

    def take(self) -> str | None:
        """The next frame for the present connection."""
        if self._acceptance_due:
            self._acceptance_due = False
            return encode(InferenceAccepted(request_id=self.request_id))
        return self._replay.take()

    def acknowledge(self, seq: int) -> None:
        self._replay.acknowledge(seq)
        self._changed.set()

    def resume(self, next_seq: int) -> bool:
        """Over a new connection, whose other end lacks `next_seq` and what follows. False: that is no longer kept."""
        self._acceptance_due = self._accepted
        if not self._replay.rewind(next_seq):
            return False
        self._changed.set()
        if self.pending:
            self._ready(self)
        return True

    def give_up(self) -> None:
        """Of an answer with a part missing: an error, the only frame that needs no other before it."""
        self.silence()
        self.ended = False
        self.fail(REPLAY_LOST)

    def silence(self) -> None:
        """What has not been sent yet, nobody wants any more."""
        self._replay, self._acceptance_due, self._accepted = Replay(), False, False

    async def _until_light(self, size_bytes: int) -> None:
        """Half empty rather than one frame short of full: going on must be worth the while."""
        while not (self._replay.light and self._replay.fits(size_bytes)):
            self._changed.clear()
            await self._changed.wait()

    def _append(self, frame: str) -> None:
        self._replay.add(frame)
        self._ready(self)


@contextmanager
def _held(hold: Callable[[bool], None]) -> Iterator[None]:
    hold(True)
    try:
        yield
    finally:
        hold(False)
