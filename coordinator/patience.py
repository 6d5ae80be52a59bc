"""How long a request's next frame is waited for. Pure: frames and the time come in.

Every frame shows that the request is alive and renews its deadline, its own and no other's; a park may be kept alive
that way only for so long.
"""

from collections.abc import Callable

from coordinator.config import Timings
from coordinator.inbox import Broken, Frame
from coordinator.refusals import RETRY_AFTER_S
from provider.api.wire import Failure, unavailable
from provider.protocol import InferenceNotice


class Patience:
    """Of one attempt. `clock` tells monotonic seconds."""

    def __init__(self, timings: Timings, clock: Callable[[], float]) -> None:
        self._timings = timings
        self._clock = clock
        self._accepted = False
        self._parked_until_s: float | None = None

    @property
    def left_s(self) -> float:
        if not self._accepted:
            return self._timings.accept_within_s
        if self._parked_until_s is None:
            return self._timings.silence_s
        return max(0.0, min(self._timings.silence_s, self._parked_until_s - self._clock()))

    @property
    def over(self) -> bool:
        """Whether a park has lasted too long, however lively it is."""
        return self._parked_until_s is not None and self._clock() >= self._parked_until_s

    def heard(self, frame: Frame | Broken) -> None:
        self._accepted = True
        if not isinstance(frame, InferenceNotice):
            return
        match frame.kind:
            case "preempted":
                self._parked_until_s = self._clock() + self._timings.longest_park_s
            case "resumed":
                self._parked_until_s = None
            case "preempt-keepalive" | "recomputed":
                pass

    def failure(self) -> Failure:
        """Of a request that was waited for in vain."""
        if self.over:
            message = "The chat was parked for want of memory and has not come back in time."
            return Failure(504, "internal_error", "parked_too_long", message)
        if self._accepted:
            return Failure(
                504, "internal_error", "deadline_exceeded", "The provider has not answered within the deadline."
            )
        return unavailable("The provider did not accept the request in time.", "provider_silent", RETRY_AFTER_S)
