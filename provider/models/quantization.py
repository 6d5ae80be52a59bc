"""How a checkpoint's weights are packed, as its config says."""

from collections.abc import Mapping
from typing import Any

SHARED_METHODS = frozenset({"mxfp4"})
"""Formats that mlx-lm takes as they are: gpt-oss is published in mxfp4."""


def quantization_summary(config: Mapping[str, Any]) -> str | None:
    """`4bit-g64`, `mxfp8-g32`, with `-mixed` where layers differ; a foreign method's name; None for none."""
    packed = mlx_quantization(config)
    if packed is None:
        return _method(config)
    bits, group, mode = packed.get("bits"), packed.get("group_size"), packed.get("mode", "affine")
    name = f"{bits}bit" if mode == "affine" else str(mode)
    others = [entry for entry in packed.values() if isinstance(entry, dict)]
    mixed = any(entry.get("bits", bits) != bits for entry in others)
    return f"{name}-g{group}" + ("-mixed" if mixed else "")


def mlx_quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object MLX writes under `quantization`, and again under `quantization_config`."""
    for key in ("quantization", "quantization_config"):
        declared = config.get(key)
        if isinstance(declared, dict) and "bits" in declared and "quant_method" not in declared:
            return declared
    return None


def foreign_quantization(config: Mapping[str, Any]) -> str | None:
    """The method of a checkpoint quantised by other means than MLX's, and not in a format that MLX computes with."""
    method = _method(config)
    return None if method in SHARED_METHODS else method


def _method(config: Mapping[str, Any]) -> str | None:
    declared = config.get("quantization_config")
    if not isinstance(declared, dict) or mlx_quantization(config) is not None:
        return None
    return str(declared.get("quant_method", "unknown"))
