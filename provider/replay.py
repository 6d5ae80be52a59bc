"""What one answer has said and its coordinator has not acknowledged yet: numbered, in order, bounded. Pure."""

from collections import deque
from dataclasses import dataclass

from provider.protocol import ACK_BYTES

MAX_FRAMES = 512
MAX_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class _Kept:
    frame: str
    size_bytes: int


class Replay:
    """Frames go in at `next_seq`, are taken once by each connection, and are forgotten when acknowledged."""

    def __init__(self, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._taken_to = 0
        self.next_seq = 0

    @property
    def first_seq(self) -> int:
        """The oldest number that can still be sent; `next_seq` when all is acknowledged."""
        return self.next_seq - len(self._kept)

    @property
    def pending(self) -> bool:
        """Whether the present connection has something left to take."""
        return self._taken_to < self.next_seq

    @property
    def light(self) -> bool:
        """At most half full: worth going on for."""
        return 2 * len(self._kept) <= self._max_frames and 2 * self._bytes <= self._max_bytes

    def fits(self, size_bytes: int) -> bool:
        """A frame larger than all the room has its turn when no more is kept than a coordinator may leave
        unacknowledged, for that would never become less."""
        return len(self._kept) < self._max_frames and (
            self._bytes + size_bytes <= self._max_bytes or self._bytes < ACK_BYTES
        )

    def add(self, frame: str) -> None:
        """With the number `next_seq`. The caller has seen to the room; an answer's last frame needs none."""
        size_bytes = size_of(frame)
        self._kept.append(_Kept(frame, size_bytes))
        self._bytes += size_bytes
        self.next_seq += 1

    def take(self) -> str | None:
        """The next frame to send; None when this connection has had them all."""
        if not self.pending:
            return None
        kept = self._kept[self._taken_to - self.first_seq]
        self._taken_to += 1
        return kept.frame

    def acknowledge(self, seq: int) -> None:
        """All up to `seq` have arrived. What has not been sent cannot have."""
        self._forget_before(min(seq + 1, self._taken_to))

    def rewind(self, next_seq: int) -> bool:
        """A new connection goes on at `next_seq`, which acknowledges all before it. False, and nothing changes, when
        that number is gone or was never given."""
        if not self.first_seq <= next_seq <= self.next_seq:
            return False
        self._forget_before(next_seq)
        self._taken_to = next_seq
        return True

    def _forget_before(self, seq: int) -> None:
        while self._kept and self.first_seq < seq:
            self._bytes -= self._kept.popleft().size_bytes


def size_of(frame: str) -> int:
    """In bytes on the wire."""
    return len(frame) if frame.isascii() else len(frame.encode())
