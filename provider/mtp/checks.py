"""The tensors of a head against what its target requires: the exact names, shapes, types and sizes, and sane norms."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from provider.models.dtypes import FLOAT_DTYPES
from provider.models.safetensors_header import TensorInfo
from provider.mtp.faults import Fault, Mismatch
from provider.mtp.files import byte_length
from provider.mtp.head import HeadTensor
from provider.mtp.norms import check_norms
from provider.mtp.packing import HeadQuantization, Packing
from provider.mtp.target import Target
from provider.mtp.tensors import FUSED_EXPERTS, Dense, Shape, linears, shapes

MAX_TENSORS = 512
MAX_KEY_BYTES = 1024
MAX_PAYLOAD_BYTES = 2 * 2**30
STORED_ITEMSIZE = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4, "U8": 1}
"""The types that a head is stored in, and the bytes of one element."""
PACKED, BYTE_SCALES = "U32", "U8"

Tensors = Mapping[str, HeadTensor]
"""By name without the prefix."""


def check_names(names: Iterable[str], path: Path) -> None:
    """How many there are, and how long; `path` is the file that lists them. Raises Fault."""
    found = list(names)
    if not found:
        raise Fault("lists no tensor of a head under the declared prefix", path)
    if len(found) > MAX_TENSORS:
        raise Fault(f"lists {len(found)} tensors of a head, more than {MAX_TENSORS}", path)
    longest = max(found, key=byte_length)
    if byte_length(longest) > MAX_KEY_BYTES:
        raise Fault(f"lists a tensor whose name is longer than {MAX_KEY_BYTES} bytes: {longest:.60}...", path)


def head_tensor(name: str, info: TensorInfo, shard: Path) -> HeadTensor:
    return HeadTensor(name, info.dtype, info.shape, shard, info.offset, info.size_bytes)


def stores_fused_experts(tensors: Tensors) -> bool:
    return any(name.startswith(FUSED_EXPERTS) for name in tensors)


def check_tensors(tensors: Tensors, target: Target, quantization: HeadQuantization, path: Path) -> dict[str, Packing]:
    """The packed modules, and how each is packed. `path`: of the file to name where none is at fault alone.

    Raises Mismatch where the head is another target's, Fault for everything else.
    """
    _check_payload(tensors, path)
    _check_kind(tensors, target, path)
    fused = stores_fused_experts(tensors)
    packings = _packings(tensors, quantization, set(linears(target.dimensions, fused)), path)
    expected = _expected(target, fused, packings, path)
    _check_set(tensors, expected, path)
    for name, tensor in tensors.items():
        _check_type(name, tensor, target, packings)
        _check_shape(name, tensor, expected[name])
    check_norms(tensors, target.raw_norms)
    return packings


def _check_payload(tensors: Tensors, path: Path) -> None:
    payload = sum(tensor.size_bytes for tensor in tensors.values())
    if not 0 < payload <= MAX_PAYLOAD_BYTES:
        raise Fault(f"the head's tensors have {payload} bytes: more than 0 and at most 2 GiB are accepted", path)


def _check_kind(tensors: Tensors, target: Target, path: Path) -> None:
    dense = isinstance(target.dimensions.feed_forward, Dense)
    if dense == any(".mlp.experts." in name or ".mlp.switch_mlp." in name for name in tensors):
        raise Mismatch(
            "the head has experts, and its target none" if dense else "the target has experts, and its head none", path
        )


def _packings(tensors: Tensors, quantization: HeadQuantization, modules: set[str], path: Path) -> dict[str, Packing]:
    packed = {name.removesuffix(".scales") for name in tensors if name.endswith(".scales")}
    for module in sorted(set(quantization.overrides) - packed):
        what = "has no scales" if module in modules else "is no linear module of the head"
        raise Fault(f"mtplx_mtp_quantization names {module}, which {what}", path)
    found = {}
    for module in sorted(packed & modules):
        packing = quantization.of(module)
        if packing is None:
            raise Fault(f"{module} has scales, and mtplx_mtp_quantization does not say how it is packed", path)
        found[module] = packing
    return found


def _expected(target: Target, fused: bool, packings: Mapping[str, Packing], path: Path) -> dict[str, Shape]:
    try:
        return shapes(target.dimensions, fused, packings)
    except ValueError as error:
        raise Fault(f"mtplx_mtp_quantization does not fit the head: {error}", path) from error


def _check_set(tensors: Tensors, expected: Mapping[str, Shape], path: Path) -> None:
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing:
        raise Fault(f"the head lacks {_some(missing)}", path)
    if extra:
        raise Fault(f"the head has {_some(extra)}, which such a head does not have", path)


def _check_type(name: str, tensor: HeadTensor, target: Target, packings: Mapping[str, Packing]) -> None:
    module, _, part = name.rpartition(".")
    accepted = _types(part, packings[module], target) if module in packings else tuple(FLOAT_DTYPES)
    if tensor.dtype not in accepted:
        raise Fault(f"{name} is {tensor.dtype}, not {' or '.join(accepted)}", tensor.shard)


def _types(part: str, packing: Packing, target: Target) -> tuple[str, ...]:
    if part == "weight":
        return (PACKED,)
    if packing.mode != "affine":
        return (BYTE_SCALES,)
    return tuple(name for name, dtype in FLOAT_DTYPES.items() if dtype == target.dtype)


def _check_shape(name: str, tensor: HeadTensor, expected: Shape) -> None:
    if tensor.shape != expected:
        raise Mismatch(f"{name} has the shape {list(tensor.shape)}; the target requires {list(expected)}", tensor.shard)
    if tensor.size_bytes != math.prod(expected) * STORED_ITEMSIZE[tensor.dtype]:
        raise Fault(f"{name} has {tensor.size_bytes} bytes, which its shape and type contradict", tensor.shard)


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:80] for name in names[:3]) + rest
