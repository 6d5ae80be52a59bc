"""Whether a head's norms are stored as its layout says. Norms that are applied less or more one draft nothing right,
silently; those of query and key tell, for they stay near 1, where others of a sound head may be anywhere."""

import math
import struct
from collections.abc import Mapping

from provider.mtp.faults import Fault
from provider.mtp.files import read_bytes
from provider.mtp.head import HeadTensor
from provider.mtp.tensors import QK_NORMS

LEAST, MOST = 0.85, 1.9
"""Of the mean as it is applied: 1.0 in a fresh head, 1.5 in the bundled one, 1.7 to 1.8 in Qwen3.5's own
(https://github.com/youssofal/MTPLX/pull/511). A layout taken for the other is off by 1: up to 0.8, or from 2.0 on."""


LESS_ONE, AS_APPLIED = "less one (Hugging Face's layout)", "as they are applied (MLX's layout)"


def check_norms(tensors: Mapping[str, HeadTensor], raw: bool) -> None:
    """`raw`: stored less one. Raises Fault."""
    for path in QK_NORMS:
        tensor = tensors[f"{path}.weight"]
        values = _values(tensor)
        mean = sum(values) / len(values) + (1 if raw else 0)
        if not math.isfinite(mean) or not LEAST <= mean <= MOST:
            raise Fault(
                f"{path} would be applied with a mean of {mean:.2f}, not near 1: the trunk's norms are stored "
                f"{LESS_ONE if raw else AS_APPLIED}, and so must the head's be",
                tensor.shard,
            )


def _values(tensor: HeadTensor) -> tuple[float, ...]:
    raw = read_bytes(tensor.shard, tensor.offset, tensor.size_bytes)
    if len(raw) < tensor.size_bytes:
        raise Fault("ends too early", tensor.shard)
    count = tensor.shape[0]
    match tensor.dtype:
        case "F32":
            return struct.unpack(f"<{count}f", raw)
        case "F16":
            return struct.unpack(f"<{count}e", raw)
        case "BF16":  # the upper half of a float32
            halves = struct.unpack(f"<{count}H", raw)
            return struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves)))
        case _:
            raise Fault(f"{tensor.name} is {tensor.dtype}, not a floating-point type", tensor.shard)
