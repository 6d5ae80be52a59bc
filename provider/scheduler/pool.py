"""The room one model's resident sequences share: token positions, and bytes where a byte budget is known."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pool:
    """`tokens`: positions over all resident sequences. `bytes` None: no byte budget.

    A sequence of n positions costs `state_bytes + ceil(n / block_tokens) * block_tokens * kv_bytes_per_token`;
    state and rounding are charged to the bytes, never to the positions.
    """

    tokens: int
    bytes: int | None = None
    kv_bytes_per_token: int = 0
    state_bytes: int = 0
    block_tokens: int = 256
    tokens_follow_bytes: bool = False
    """Nobody has named `tokens`: they are as many as the bytes hold."""
    padding_states: int = 0
    """States that are held beside those of the sequences, to fill a launch up."""

    def with_bytes(self, size_bytes: int) -> "Pool":
        tokens = self.tokens
        if self.tokens_follow_bytes and self.kv_bytes_per_token:
            tokens = size_bytes // self.kv_bytes_per_token
        return replace(self, tokens=tokens, bytes=size_bytes)

    def sequence_bytes(self, positions: int) -> int:
        blocks = -(-positions // self.block_tokens)
        return self.state_bytes + blocks * self.block_tokens * self.kv_bytes_per_token

    def holds(self, sizes: Iterable[int], captured_states: int = 0) -> bool:
        """Whether sequences of these many positions fit together, and beside them the states that a step captures."""
        counted = list(sizes)
        if sum(counted) > self.tokens:
            return False
        if self.bytes is None or not counted:
            return True
        more = captured_states + self.padding_states
        return sum(map(self.sequence_bytes, counted)) + more * self.state_bytes <= self.bytes

    def largest(self) -> int:
        """Positions that one sequence can have when it is alone."""
        if self.bytes is None or self.kv_bytes_per_token == 0:
            return self.tokens
        states_bytes = (1 + self.padding_states) * self.state_bytes
        blocks = max(0, self.bytes - states_bytes) // (self.kv_bytes_per_token * self.block_tokens)
        return min(self.tokens, blocks * self.block_tokens)
