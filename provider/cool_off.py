"""How long a model whose workers keep dying is left alone: longer each time, until it has lasted for a while."""

from dataclasses import dataclass

FIRST_S, LONGEST_S = 60.0, 900.0
"""The first cool-off, and the one that none is longer than: each is twice the one before it."""
FORGOTTEN_AFTER_S = LONGEST_S
"""A model that has not failed for that long after its last cool-off starts with the shortest again."""


@dataclass(frozen=True, slots=True)
class CoolOff:
    """After so many failures in a row, until that moment of its owner's clock."""

    failures: int = 0
    ends_at: float = 0.0

    def remembers(self, now: float) -> bool:
        """Whether another failure at that moment would be one more in a row."""
        return self.failures > 0 and now - self.ends_at < FORGOTTEN_AFTER_S

    def after_failure(self, now: float) -> "CoolOff":
        failures = self.failures + 1 if self.remembers(now) else 1
        doublings = min(failures - 1, 16)
        return CoolOff(failures, now + min(LONGEST_S, FIRST_S * 2.0**doublings))

    def left_s(self, now: float) -> float:
        """0: it may be tried again."""
        return max(0.0, self.ends_at - now)
