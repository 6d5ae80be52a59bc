"""What has arrived for one request and was not yet passed on: bounded, in order, never with a hole."""

import asyncio
from collections import deque
from enum import StrEnum

from provider.protocol import (
    ACK_BYTES,
    ACK_EVERY,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
)

MAX_FRAMES = 4096
MAX_BYTES = 8 * 2**20

Frame = InferenceAccepted | InferenceChunk | InferenceNotice | InferenceComplete | InferenceError


class Broken(StrEnum):
    """Why no more frames will come, other than that the provider has finished."""

    PROVIDER_LOST = "provider_lost"
    PROVIDER_BUSY = "provider_link_full"
    """Its socket takes no more: the request was not sent."""
    SLOW_CLIENT = "client_too_slow"
    SEQUENCE_GAP = "sequence_gap"
    MALFORMED = "malformed_frame"
    STOPPING = "coordinator_stopping"


class Inbox:
    """The hub puts, the relay takes. Full means that the client reads too slowly: the stream breaks, nothing is
    dropped. `over` says that the provider has said its last word; `begun`, that a chunk has come."""

    def __init__(self, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._frames: deque[tuple[Frame, int]] = deque()
        self._bytes = 0
        self._broken: Broken | None = None
        self._something = asyncio.Event()
        self._owed_bytes = 0
        self.next_seq = 0
        self.begun = False
        self.over = False

    @property
    def ended(self) -> bool:
        """Whether nothing more can come in."""
        return self.over or self._broken is not None

    def put(self, frame: Frame, size_bytes: int) -> int | None:
        """The number to acknowledge now, if any. A repeated number is left out; after the end, everything is."""
        if self.ended:
            return None
        match frame:
            case InferenceChunk() | InferenceNotice() if frame.seq < self.next_seq:
                return None
            case InferenceChunk() | InferenceNotice() | InferenceComplete() if frame.seq > self.next_seq:
                self.break_off(Broken.SEQUENCE_GAP)
                return None
            case InferenceChunk() | InferenceNotice():
                self.next_seq += 1
                self.begun = self.begun or isinstance(frame, InferenceChunk)
                self._append(frame, size_bytes)
                return self._due(frame.seq, size_bytes)
            case InferenceComplete() | InferenceError():
                self.over = True
                self._append(frame, size_bytes)
                return frame.seq
            case InferenceAccepted():
                self._append(frame, size_bytes)
                return None

    def _due(self, seq: int, size_bytes: int) -> int | None:
        self._owed_bytes += size_bytes
        if self._owed_bytes < ACK_BYTES and (seq + 1) % ACK_EVERY:
            return None
        self._owed_bytes = 0
        return seq

    def break_off(self, why: Broken) -> None:
        """What has arrived before is still taken first."""
        if not self.over and self._broken is None:
            self._broken = why
            self._something.set()

    async def take(self) -> Frame | Broken:
        while not self._frames:
            if self._broken is not None:
                return self._broken
            self._something.clear()
            await self._something.wait()
        frame, size_bytes = self._frames.popleft()
        self._bytes -= size_bytes
        return frame

    def _append(self, frame: Frame, size_bytes: int) -> None:
        """The last word is always taken: it is one, and it ends the stream. What counts is what
        waits before a frame: one may be larger than all of that, and says nothing of its client."""
        full = len(self._frames) >= self._max_frames or self._bytes >= self._max_bytes
        if full and not self.over:
            self.break_off(Broken.SLOW_CLIENT)
        else:
            self._frames.append((frame, size_bytes))
            self._bytes += size_bytes
            self._something.set()
