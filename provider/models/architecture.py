"""The dimensions of a Qwen3.5 text model, read from its config, and what they cost in bytes per sequence.

Facts and names: docs/mtp.md. The text part may be nested under `text_config` or lie flat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from provider.errors import ModelUnsupported

STATE_ITEMSIZE = 4
"""The recurrent state is float32 whatever the model's dtype."""


class LayerKind(StrEnum):
    LINEAR = "linear_attention"
    FULL = "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One text trunk: gated-delta layers with a full-attention layer at the end of every interval."""

    vocab_size: int
    hidden_size: int
    context_length: int
    layer_kinds: tuple[LayerKind, ...]
    attention_heads: int
    kv_heads: int
    head_dim: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    conv_kernel: int
    tie_word_embeddings: bool

    @property
    def full_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.FULL)

    @property
    def linear_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.LINEAR)

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: query and key of every key head, value of every value head."""
        keys = self.linear_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_value_heads * self.linear_value_head_dim

    def kv_bytes_per_token(self, itemsize: int) -> int:
        return 2 * self.full_layers * self.kv_heads * self.head_dim * itemsize

    def state_bytes(self, itemsize: int) -> int:
        """Of one sequence, however long: recurrent state and the last inputs of the convolution."""
        cells = self.linear_value_heads * self.linear_value_head_dim * self.linear_key_head_dim
        conv = (self.conv_kernel - 1) * self.conv_dim * itemsize
        return self.linear_layers * (cells * STATE_ITEMSIZE + conv)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """Raises ModelUnsupported, naming the key, when the config is incomplete or contradicts itself."""
    text = text_config(config)
    hidden_size, heads = _count(text, "hidden_size"), _count(text, "num_attention_heads")
    return Architecture(
        vocab_size=_count(text, "vocab_size"),
        hidden_size=hidden_size,
        context_length=_count(text, "max_position_embeddings"),
        layer_kinds=_layer_kinds(text),
        attention_heads=heads,
        kv_heads=_count(text, "num_key_value_heads"),
        head_dim=_count(text, "head_dim", hidden_size // heads),
        linear_key_heads=_count(text, "linear_num_key_heads"),
        linear_value_heads=_count(text, "linear_num_value_heads"),
        linear_key_head_dim=_count(text, "linear_key_head_dim"),
        linear_value_head_dim=_count(text, "linear_value_head_dim"),
        conv_kernel=_count(text, "linear_conv_kernel_dim", 4),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
    )


def _count(text: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = text.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelUnsupported(f"config.json: {key} must be a positive integer, not {value!r}.")
    return value


def _layer_kinds(text: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    """By the interval, which is what mlx-lm builds; a `layer_types` that says otherwise is refused."""
    interval = _count(text, "full_attention_interval", 4)
    kinds = tuple(
        LayerKind.LINEAR if (layer + 1) % interval else LayerKind.FULL
        for layer in range(_count(text, "num_hidden_layers"))
    )
    declared = text.get("layer_types")
    if declared is not None and declared != list(kinds):
        raise ModelUnsupported(
            f"config.json: layer_types disagrees with full_attention_interval {interval}: "
            "only a full-attention layer at the end of every interval is served."
        )
    return kinds
