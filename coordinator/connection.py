"""One provider's socket as a speaker of the protocol: frames become messages, and too many that are none end it."""

from dataclasses import dataclass

from coordinator import log
from coordinator.link import Link
from coordinator.metrics import Metrics
from provider.protocol import (
    CLOSE_PROTOCOL_ERROR,
    MALFORMED_LIMIT,
    FromProvider,
    ProtocolErrorMessage,
    ProtocolViolation,
    UnknownType,
    parse_from_provider,
)

UNKNOWN_LOGGED = 10


class Malformed(Exception):
    """The peer has sent too much that is no message; the link is closing."""


@dataclass(slots=True)
class Connection:
    """`provider_id` is empty until it has registered."""

    link: Link
    metrics: Metrics
    provider_id: str = ""
    generation: int = 0
    malformed: int = 0
    unknown: int = 0

    def parse(self, frame: str | bytes) -> FromProvider | None:
        """None for what is no message, or none that is known here. Raises Malformed."""
        if isinstance(frame, bytes):
            self.complain("frames are text")
            return None
        try:
            message = parse_from_provider(frame)
        except UnknownType as unknown:
            self._note_unknown(unknown)
            return None
        except ProtocolViolation as violation:
            self.complain(str(violation))
            return None
        self.metrics.frames(message.type).inc()
        return message

    def _note_unknown(self, unknown: UnknownType) -> None:
        """A newer provider may say such things all day: the log has the first of them."""
        self.metrics.frames("unknown").inc()
        self.unknown += 1
        if self.unknown <= UNKNOWN_LOGGED:
            log.warning("frame_type_unknown", provider=self.provider_id, type=str(unknown)[:80])

    def complain(self, message: str) -> None:
        """Raises Malformed the last time."""
        self.metrics.frames("malformed").inc()
        log.warning("frame_malformed", provider=self.provider_id, reason=message[:200])
        self.malformed += 1
        self.link.send(ProtocolErrorMessage(message=message[:500]))
        if self.malformed >= MALFORMED_LIMIT:
            self.link.close(CLOSE_PROTOCOL_ERROR, "too many malformed frames")
            raise Malformed
