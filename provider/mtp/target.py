"""What a head must agree with: its target's dimensions, its type of activations, and the layout of its norms."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.errors import ModelError
from provider.models.dtypes import ITEMSIZE, activation_dtype
from provider.models.families import read_architecture, text_config
from provider.models.safetensors_header import TensorInfo
from provider.mtp.faults import Fault
from provider.mtp.policy import FAMILIES, family
from provider.mtp.tensors import Dense, Experts, HeadDimensions


@dataclass(frozen=True, slots=True)
class Target:
    """`raw_norms`: Hugging Face's layout, where norm weights are stored less one (all but the gated norm)."""

    dimensions: HeadDimensions
    dtype: str
    raw_norms: bool

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]


def read_target(config: Mapping[str, Any], trunk: Mapping[str, TensorInfo], path: Path) -> Target:
    """From a config.json at `path` and the headers of the trunk. Raises Fault when they do not say enough."""
    dtype = activation_dtype(trunk)
    if dtype is None:
        raise Fault("the target's embedding is none of float32, bfloat16 and float16", path.parent)
    return Target(_dimensions(config, path), dtype, _has_raw_norms(trunk))


def _dimensions(config: Mapping[str, Any], path: Path) -> HeadDimensions:
    text, kind = text_config(config), family(str(config.get("model_type")))
    if kind not in FAMILIES:
        raise Fault(f"model_type {config.get('model_type')!r} has no head that is drafted with", path)
    if text.get("attention_bias"):
        raise Fault("attention_bias: heads of targets with biases are not drafted with", path)
    try:
        layers = read_architecture(kind, config)
    except ModelError as error:
        raise Fault(str(error), path) from error
    return HeadDimensions(
        hidden_size=layers.hidden_size,
        attention_heads=layers.attention_heads,
        kv_heads=layers.kv_heads,
        head_dim=layers.head_dim,
        feed_forward=_feed_forward(text, path),
    )


def _feed_forward(text: Mapping[str, Any], path: Path) -> Dense | Experts:
    """Every layer has experts as soon as there are any: what mlx-lm builds for these families."""
    if not text.get("num_experts"):
        return Dense(_count(text, "intermediate_size", path))
    return Experts(
        _count(text, "num_experts", path),
        _count(text, "moe_intermediate_size", path),
        _count(text, "shared_expert_intermediate_size", path),
    )


def _count(text: Mapping[str, Any], key: str, path: Path) -> int:
    value = text.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise Fault(f"{key} must be a positive integer, not {value!r}", path)
    return value


def _has_raw_norms(trunk: Mapping[str, TensorInfo]) -> bool:
    """mlx-lm's rule: some convolution still has its kernel last ([channels, 1, kernel])."""
    return any(name.endswith("conv1d.weight") and info.shape[-1:] != (1,) for name, info in trunk.items())
