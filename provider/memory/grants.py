"""How the KV budget is shared by the resident models: pure, and one answer for the same facts.

A share is a grant once its worker has been told; a smaller one counts when the worker has acknowledged it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

CONTEXT_CAP_TOKENS = 131_072
"""A context beyond this weighs no more. Source: the open-source darkbloom provider."""


@dataclass(frozen=True, slots=True)
class Member:
    """`kv_bytes_per_token` None: unknown. `minimum_bytes`: the smallest share it can serve with."""

    kv_bytes_per_token: int | None
    context_tokens: int
    minimum_bytes: int

    @property
    def weight(self) -> int:
        return (self.kv_bytes_per_token or 0) * min(self.context_tokens, CONTEXT_CAP_TOKENS)


def shares(budget_bytes: int, members: Mapping[str, Member]) -> dict[str, int] | None:
    """In proportion to what a full context takes, equally where a rate is unknown, and nobody below its minimum;
    None when the minima do not fit together."""
    if sum(one.minimum_bytes for one in members.values()) > budget_bytes:
        return None
    at_minimum: dict[str, int] = {}
    while True:
        rest = {id: one for id, one in members.items() if id not in at_minimum}
        found = _in_proportion(budget_bytes - sum(at_minimum.values()), rest)
        short = {id: rest[id].minimum_bytes for id, share in found.items() if share < rest[id].minimum_bytes}
        if not short:
            return {id: at_minimum.get(id, found.get(id, 0)) for id in members}
        at_minimum |= short


def clamped(granted: Mapping[str, int], wanted: Mapping[str, int]) -> dict[str, int]:
    """Shrinks only: what a model has been granted never grows but by an explicit regrow. Newcomers get their share."""
    return {id: min(share, granted.get(id, share)) for id, share in wanted.items()}


def _in_proportion(budget_bytes: int, members: Mapping[str, Member]) -> dict[str, int]:
    weights = {id: one.weight for id, one in members.items()}
    if any(one.kv_bytes_per_token is None for one in members.values()) or not any(weights.values()):
        weights = dict.fromkeys(members, 1)
    total = sum(weights.values())
    return {id: budget_bytes * weight // total for id, weight in weights.items()}
