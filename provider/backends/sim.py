"""A backend without tensors: every token is a hash of the tokens before it.

Deterministic, as fast as Python, and strict about its callers: it refuses what would corrupt a real backend's
sequences. It serves any checkpoint whose facts can be read, so engines, fleets and their tests run on real geometry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from provider.backends.base import BackendFacts, BackendMemory, Row
from provider.generation import Sampling
from provider.randomness import uniform

BLOCK_TOKENS = 256


@dataclass(slots=True)
class Held:
    """`digest` stands for the keys, values and state of `length` positions."""

    sampling: Sampling
    length: int = 0
    digest: bytes = b""

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.digest = blake2b(self.digest + token.to_bytes(4, "little"), digest_size=16).digest()
        self.length += len(tokens)

    def draw(self, position: int, vocab_size: int) -> int:
        value = int.from_bytes(self.digest[:8], "little")
        if self.sampling.temperature > 0:
            value += int(uniform(self.sampling.seed, self.sampling.index, position) * 2**32)
        return value % vocab_size


class SimBackend:
    """Implements provider.backends.base.Backend."""

    def __init__(self, facts: BackendFacts) -> None:
        self.facts = facts
        self._held: dict[str, Held] = {}
        self._peak_bytes = facts.weight_bytes

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        if id in self._held:
            raise ValueError(f"sequence {id!r} is already open")
        self._held[id] = Held(sampling)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        if not tokens:
            raise ValueError("an empty chunk")
        held = self._held[id]
        held.append(tokens)
        return None if position is None else held.draw(position, self.facts.vocab_size)

    def decode(self, rows: Sequence[Row]) -> list[int]:
        if len({row.id for row in rows}) < len(rows):
            raise ValueError("a sequence has one row in a step")
        return [self._decode_row(row) for row in rows]

    def release(self, id: str) -> None:
        self._held.pop(id, None)

    def memory(self) -> BackendMemory:
        facts = self.facts
        blocks = sum(-(-held.length // facts.block_tokens) for held in self._held.values())
        sequences = blocks * facts.block_tokens * facts.kv_bytes_per_token + len(self._held) * facts.state_bytes
        active = facts.weight_bytes + sequences
        self._peak_bytes = max(self._peak_bytes, active)
        return BackendMemory(active, 0, self._peak_bytes)

    def close(self) -> None:
        self._held.clear()

    def _decode_row(self, row: Row) -> int:
        held = self._held[row.id]
        held.append([row.token])
        return held.draw(row.position, self.facts.vocab_size)
