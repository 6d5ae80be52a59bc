"""How one model's place stands, why, and for how long it stays so."""

import logging
import math
from collections.abc import Callable
from typing import Literal

from provider.api import wire
from provider.cool_off import CoolOff

log = logging.getLogger(__name__)

SlotStatus = Literal["unloaded", "loading", "ready", "failed"]


class Standing:
    """Owner: a slot. `reason`: why it is not ready. `failures`: how often it has failed since it was made."""

    def __init__(self, model_id: str, clock: Callable[[], float]) -> None:
        self.reason: str | None = None
        self.failures = 0
        self._model = model_id
        self._clock = clock
        self._status: SlotStatus = "unloaded"
        self._cool_off = CoolOff()
        self._for_good = False

    @property
    def status(self) -> SlotStatus:
        """`failed` for as long as its cool-off lasts."""
        return "unloaded" if self._status == "failed" and self.retry_in_s == 0 else self._status

    @property
    def retry_in_s(self) -> float | None:
        """Of one that has failed: how long until a load may be tried again; None where no time is set."""
        if self._status != "failed" or self._for_good:
            return None
        return self._cool_off.left_s(self._clock())

    @property
    def refusal(self) -> wire.Failure:
        """What a request is told while there is no worker, nor one to come."""
        said, left_s = f"The model {self._model} is not running: {self.reason}", self.retry_in_s
        if left_s is None:
            return wire.unavailable(said, "slot_state")
        after_s = max(1, math.ceil(left_s))
        return wire.unavailable(f"{said.rstrip('.')}. It is tried again in {after_s} s.", "slot_state", after_s)

    def becomes(self, status: SlotStatus, reason: str | None = None) -> None:
        self._status, self.reason = status, reason

    def fail(self, reason: str, for_good: bool = False) -> None:
        """Until its cool-off is over, or somebody loads the model by hand. `for_good`: it is not tried again."""
        self.becomes("failed", reason)
        self._for_good = for_good
        self._cool_off = self._cool_off.after_failure(self._clock())
        self.failures += 1
        log.error("slot_failed model=%s reason=%s retry_in_s=%s", self._model, reason, self.retry_in_s)

    def fail_again(self, reason: str) -> bool:
        """A load has failed, and there is no worker. Whether that is one more failure in a row of a slot that had been
        given up: it is failed again then, for longer."""
        if not self._cool_off.remembers(self._clock()):
            return False
        self.fail(reason)
        return True

    def recover(self) -> bool:
        """Whether its cool-off has ended since it was last asked."""
        if self._status != "failed" or self.status == "failed":
            return False
        self._status = "unloaded"
        return True
