"""The dimensions of a text model and what they cost in bytes per sequence."""

from dataclasses import dataclass
from enum import StrEnum

STATE_ITEMSIZE = 4
"""The recurrent state is float32 whatever the model's dtype."""


class LayerKind(StrEnum):
    """Names as config.json writes them in `layer_types`."""

    LINEAR = "linear_attention"
    FULL = "full_attention"
    SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """The gated-delta layers of a hybrid trunk."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: query and key of every key head, value of every value head."""
        return 2 * self.key_heads * self.key_head_dim + self.value_heads * self.value_head_dim

    def state_bytes(self, itemsize: int) -> int:
        """Of one layer and sequence: recurrent state and the last inputs of the convolution."""
        cells = self.value_heads * self.value_head_dim * self.key_head_dim
        return cells * STATE_ITEMSIZE + (self.conv_kernel - 1) * self.conv_dim * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """`recurrence` describes the linear layers, `sliding_window` the sliding ones; None where there are none."""

    vocab_size: int
    hidden_size: int
    context_length: int
    layer_kinds: tuple[LayerKind, ...]
    attention_heads: int
    kv_heads: int
    head_dim: int
    tie_word_embeddings: bool
    recurrence: Recurrence | None = None
    sliding_window: int | None = None

    @property
    def full_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.FULL)

    @property
    def linear_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.LINEAR)

    @property
    def sliding_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.SLIDING)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """A sliding layer counts like a full one: exact up to its window, and above what it holds beyond."""
        return 2 * (self.full_layers + self.sliding_layers) * self.kv_heads * self.head_dim * itemsize

    def state_bytes(self, itemsize: int) -> int:
        """Of one sequence, however long."""
        return 0 if self.recurrence is None else self.linear_layers * self.recurrence.state_bytes(itemsize)
