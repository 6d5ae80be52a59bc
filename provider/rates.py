"""How fast an engine computes and copies, measured as it goes; and the scheduler's costs, which follow from that."""

from dataclasses import dataclass

from provider.backends.base import Landing
from provider.parking.mover import Lane
from provider.scheduler.costs import Costs
from provider.scheduler.sequence import Plan

SMOOTHING = 0.25
GUESS = Costs()


@dataclass(slots=True)
class Moved:
    """Copies of one direction that have landed, those that failed included in nothing but their number."""

    count: int = 0
    failed: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


class Rates:
    """Owner: the engine."""

    def __init__(self) -> None:
        self.moved = {lane: Moved() for lane in Lane}
        self._copy = {Lane.SAVE: GUESS.save_bytes_per_s, Lane.RESTORE: GUESS.restore_bytes_per_s}
        self._prefill_tokens_per_s = GUESS.prefill_tokens_per_s
        self._step_s = GUESS.step_s

    def note_copy(self, landing: Landing) -> None:
        moved = self.moved[landing.lane]
        moved.count += 1
        moved.seconds += landing.seconds
        if landing.failure is not None:
            moved.failed += 1
            return
        moved.size_bytes += landing.size_bytes
        if landing.seconds > 0:
            rate = landing.size_bytes / landing.seconds
            self._copy[landing.lane] = _smooth(self._copy[landing.lane], rate)

    def note_step(self, plan: Plan, seconds: float) -> None:
        """Only of steps that did one thing can be told how long it takes."""
        if seconds <= 0 or plan.moves:
            return
        prefilled = sum(chunk.count for chunk in plan.prefill)
        if plan.decode and not prefilled:
            self._step_s = _smooth(self._step_s, seconds)
        elif prefilled and not plan.decode:
            self._prefill_tokens_per_s = _smooth(self._prefill_tokens_per_s, prefilled / seconds)

    def costs(self, savable_bytes: int | None) -> Costs:
        return Costs(
            save_bytes_per_s=max(1.0, self._copy[Lane.SAVE]),
            restore_bytes_per_s=max(1.0, self._copy[Lane.RESTORE]),
            prefill_tokens_per_s=self._prefill_tokens_per_s,
            step_s=self._step_s,
            savable_bytes=savable_bytes,
        )


def _smooth(old: float, new: float) -> float:
    return old + SMOOTHING * (new - old)
