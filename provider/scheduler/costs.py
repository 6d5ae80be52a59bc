"""What moving or recomputing a sequence costs, from rates that the engine measures."""

from dataclasses import dataclass
from math import ceil

LEAST_MARGIN_STEPS = 4
"""However fast a copy is, it is begun after one step and found to have ended before another."""
LONGEST_MARGIN_STEPS = 32
"""Room kept free for more steps than this would be room that nobody decodes in."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The first figures are a cautious guess until something has been measured. `savable_bytes`: what the tiers still
    take; None where nothing can be saved and every parked sequence is recomputed."""

    save_bytes_per_s: float = 4e8
    restore_bytes_per_s: float = 8e8
    prefill_tokens_per_s: float = 500.0
    step_s: float = 0.05
    savable_bytes: int | None = None

    def save_s(self, size_bytes: int) -> float:
        return size_bytes / self.save_bytes_per_s

    def restore_s(self, size_bytes: int) -> float:
        return size_bytes / self.restore_bytes_per_s

    def round_trip_s(self, size_bytes: int) -> float:
        return self.save_s(size_bytes) + self.restore_s(size_bytes)

    def recompute_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_s

    def replay_s(self, tokens: int) -> float:
        """Of tokens that are fed to one decode step after the other."""
        return tokens * self.step_s

    def steps(self, seconds: float) -> int:
        """How many decode steps the others make meanwhile, up to what a margin may be."""
        return min(LONGEST_MARGIN_STEPS, LEAST_MARGIN_STEPS + ceil(seconds / self.step_s))

    def takes(self, size_bytes: int) -> bool:
        return self.savable_bytes is not None and size_bytes <= self.savable_bytes
