"""How the linear modules of a head are packed: `mtplx_mtp_quantization` of config.json.

    {"group_size": 64, "bits": 4, "mode": "affine", "layers.0.mlp.gate": {"group_size": 64, "bits": 8}}

The three defaults hold for every packed module without an entry of its own. A module is packed when its scales are
there; an empty object means that none is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

from provider.mtp.faults import Fault

PackingMode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]

ACCEPTED = {
    "affine": ((32, 64, 128), (2, 3, 4, 5, 6, 8)),
    "mxfp4": ((32,), (4,)),
    "mxfp8": ((32,), (8,)),
    "nvfp4": ((16,), (4,)),
}
"""Group sizes and bits by mode, as mlx.core.quantize takes them."""

DEFAULTS = ("group_size", "bits", "mode")


@dataclass(frozen=True, slots=True)
class Packing:
    """`group_size` weights of a row share a scale; each weight is `bits` wide."""

    group_size: int
    bits: int
    mode: PackingMode

    @property
    def has_biases(self) -> bool:
        return self.mode == "affine"


@dataclass(frozen=True, slots=True)
class HeadQuantization:
    """`overrides` by module path after the prefix."""

    default: Packing | None
    overrides: Mapping[str, Packing]

    def of(self, module: str) -> Packing | None:
        return self.overrides.get(module, self.default)


def read_quantization(declared: Any, path: Path) -> HeadQuantization:
    """`declared`: as it stands in the config at `path`. Raises Fault for anything but the form above."""
    if not isinstance(declared, dict):
        raise Fault("mtplx_mtp_quantization must be an object, empty for an unquantised head", path)
    default = _packing(declared, "mtplx_mtp_quantization", path) if set(DEFAULTS) & set(declared) else None
    overrides = {key: _override(key, value, path) for key, value in declared.items() if _is_module(key, value)}
    return HeadQuantization(default, overrides)


def _is_module(key: str, value: Any) -> bool:
    """`fc` alone has no dot; other words without one are remarks."""
    return key not in DEFAULTS and ("." in key or isinstance(value, dict))


def _override(module: str, value: Any, path: Path) -> Packing:
    if not isinstance(value, dict):
        raise Fault(f"mtplx_mtp_quantization: {module} must be an object, not {value!r}", path)
    return _packing(value, f"mtplx_mtp_quantization: {module}", path)


def _packing(declared: Mapping[str, Any], where: str, path: Path) -> Packing:
    mode = declared.get("mode", "affine")
    group_size, bits = declared.get("group_size"), declared.get("bits")
    if not isinstance(mode, str) or mode not in ACCEPTED:
        raise Fault(f"{where}: mode must be affine, mxfp4, mxfp8 or nvfp4, not {mode!r:.80}", path)
    if not _is_accepted(group_size, ACCEPTED[mode][0]) or not _is_accepted(bits, ACCEPTED[mode][1]):
        raise Fault(f"{where}: {mode} does not come with group_size {group_size!r:.80} and bits {bits!r:.80}", path)
    return Packing(group_size, bits, cast(PackingMode, mode))  # a key of ACCEPTED


def _is_accepted(value: Any, accepted: tuple[int, ...]) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value in accepted
