"""One provider's socket as a speaker of the protocol: frames become messages, and too many that are none end it."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
    request_first_named,
)
from provider.wire_limits import MOST_PARTS

READ_UNCOUNTED = 2**16
"""Characters: so few are read in a few milliseconds, whatever they are."""
UNKNOWN_LOGGED = 10
SPOILED_KEPT = 256
PARTS = (",", "[", "{")


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A frame that is no message, of which only the request can be told that it was about."""

    request_id: str
    reason: str


class Malformed(Exception):
    """The peer has sent too much that is no message; the link is closing."""


@dataclass(slots=True)
class Connection:
    """`provider_id` is empty until it has registered. `awaits`: whether the provider has that request of ours."""

    link: Link
    metrics: Metrics
    provider_id: str = ""
    generation: int = 0
    malformed: int = 0
    unknown: int = 0
    spoiled: dict[str, None] = field(default_factory=dict)
    """Requests that a malformed frame has been complained of for, the last of them."""
    awaits: Callable[[str], bool] = lambda _: False

    def parse(self, frame: str | bytes) -> FromProvider | Spoiled | None:
        """None for what is no message, or none that is known here. Raises Malformed."""
        if isinstance(frame, bytes):
            self.complain("frames are text")
            return None
        if len(frame) > READ_UNCOUNTED and not self._worth_reading(frame):
            return None
        try:
            message = parse_from_provider(frame)
        except UnknownType as unknown:
            self._note_unknown(unknown)
            return None
        except ProtocolViolation as violation:
            if violation.request_id is not None:
                return Spoiled(violation.request_id, str(violation))
            self.complain(str(violation))
            return None
        self.metrics.frames(message.type).inc()
        return message

    def _worth_reading(self, frame: str) -> bool:
        """What has very many parts takes a second to read, in which nobody else is served: that may be an answer, and
        is left out where the answer is to no request that the provider has, as is whatever comes late. Raises
        Malformed."""
        if sum(map(frame.count, PARTS)) <= MOST_PARTS:
            return True
        request_id = request_first_named(frame)
        if request_id is None:
            self.complain(f"a frame with more than {MOST_PARTS} parts begins with the request that it answers")
            return False
        return self.awaits(request_id)

    def _note_unknown(self, unknown: UnknownType) -> None:
        """A newer provider may say such things all day: the log has the first of them."""
        self.metrics.frames("unknown").inc()
        self.unknown += 1
        if self.unknown <= UNKNOWN_LOGGED:
            log.warning("frame_type_unknown", provider=self.provider_id, type=str(unknown)[:80])

    def complain_of(self, frame: Spoiled, theirs: bool) -> None:
        """Of a request that is with them it counts once: what follows was on its way before they could hear of it.
        Raises Malformed the last time."""
        again = frame.request_id in self.spoiled
        if theirs and not again:
            self.spoiled[frame.request_id] = None
            if len(self.spoiled) > SPOILED_KEPT:
                del self.spoiled[next(iter(self.spoiled))]
        self.complain(frame.reason, counts=not again)

    def complain(self, message: str, counts: bool = True) -> None:
        """Raises Malformed the last time."""
        self.metrics.frames("malformed").inc()
        if counts:
            self.malformed += 1
            log.warning("frame_malformed", provider=self.provider_id, reason=message[:200])
        self.link.send(ProtocolErrorMessage(message=message[:500]))
        if counts and self.malformed >= MALFORMED_LIMIT:
            self.link.close(CLOSE_PROTOCOL_ERROR, "too many malformed frames")
            raise Malformed
