"""What an engine needs of an accelerator: one screen.

A backend owns the tensors of its sequences and knows them by id; whoever calls it sees integers only. It is
synchronous and belongs to one thread. Every implementation passes tests/contract/test_backends.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from provider.generation import Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a decode step: feed `token`, draw the token at output position `position`."""

    id: str
    token: int
    position: int


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Geometry in bytes and tokens. A sequence of n positions holds
    `state_bytes + ceil(n / block_tokens) * block_tokens * kv_bytes_per_token`."""

    device: str
    vocab_size: int
    context_length: int
    weight_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class BackendMemory:
    active_bytes: int
    cache_bytes: int
    peak_bytes: int


class Backend(Protocol):
    @property
    def facts(self) -> BackendFacts: ...

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        """Makes room for a sequence. `emitted`: output tokens it has already drawn (a recompute)."""
        ...

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        """Appends `tokens` to the sequence; draws the token at output `position` from the last logits, if given.

        Any split of a prompt into calls gives the same tokens.
        """
        ...

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[int]:
        """One token for each row, in order. A row's token does not depend on the other rows.

        `ahead` says that the next call will most likely be a decode of the same rows, fed these tokens, so the
        backend may begin with it; rows may still leave (released) or join before.
        """
        ...

    def release(self, id: str) -> None:
        """Drops everything held for the sequence; unknown ids are ignored."""
        ...

    def memory(self) -> BackendMemory: ...

    def close(self) -> None: ...
