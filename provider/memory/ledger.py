"""Claims of loads that are under way: bytes spoken for and not yet seen in any reading.

A claim is held by its handle, not by a model's name, so that a late clean-up can never give back a newer load's claim.
Age frees nothing.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A handle: equal to itself alone."""

    model_id: str


class DuplicateClaim(ValueError):
    pass


class UnknownClaim(ValueError):
    pass


@dataclass(slots=True)
class Ledger:
    """Owner: residency. `limit_bytes` bounds the sum; a claim beyond it is refused, as is one that is held twice."""

    limit_bytes: int
    _held: dict[Claim, int] = field(default_factory=dict)

    @property
    def outstanding_bytes(self) -> int:
        return sum(self._held.values())

    def bytes_of(self, claim: Claim) -> int:
        return self._held.get(claim, 0)

    def reserve(self, claim: Claim, size_bytes: int) -> bool:
        """False when it would pass the limit: nothing is held then."""
        if claim in self._held:
            raise DuplicateClaim(f"the load of {claim.model_id} holds a claim already")
        return self._set(claim, size_bytes)

    def resize(self, claim: Claim, size_bytes: int) -> bool:
        """False when it would pass the limit: the claim stays as it was."""
        if claim not in self._held:
            raise UnknownClaim(f"the load of {claim.model_id} holds no claim")
        return self._set(claim, size_bytes)

    def release(self, claim: Claim) -> None:
        """Once, and by whoever reserved: raises UnknownClaim for a claim that is not held."""
        if self._held.pop(claim, None) is None:
            raise UnknownClaim(f"the load of {claim.model_id} holds no claim")

    def _set(self, claim: Claim, size_bytes: int) -> bool:
        if size_bytes < 0:
            raise ValueError(f"a claim of {size_bytes} bytes")
        if self.outstanding_bytes - self.bytes_of(claim) + size_bytes > self.limit_bytes:
            return False
        self._held[claim] = size_bytes
        return True
