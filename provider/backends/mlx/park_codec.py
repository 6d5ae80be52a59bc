"""A parked sequence's arrays as a safetensors file, or as bytes of the host. Runs in the mover's threads.

A lazy array cannot be computed by a thread that did not make it (mlx 0.32.4), so what comes here has been evaluated,
and what is read is evaluated by its reader.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, slots=True)
class HostArray:
    data: bytes
    dtype: mx.Dtype
    shape: tuple[int, ...]


class MlxCodec:
    """Implements provider.parking.lot.Codec."""

    def write(self, path: Path, arrays: dict[str, mx.array]) -> None:
        mx.save_safetensors(str(path), arrays)

    def read(self, path: Path) -> dict[str, mx.array]:
        found = mx.load(str(path))
        assert isinstance(found, dict), "a safetensors file"
        mx.eval(found)
        return found

    def to_host(self, arrays: dict[str, mx.array]) -> dict[str, HostArray]:
        return {name: HostArray(_bytes(one), one.dtype, one.shape) for name, one in arrays.items()}

    def from_host(self, held: dict[str, HostArray]) -> dict[str, mx.array]:
        found = {name: _array(one) for name, one in held.items()}
        mx.eval(found)
        return found


def _bytes(one: Any) -> bytes:
    """Any: mlx does not declare that its arrays are buffers."""
    return bytes(memoryview(one))


def _array(one: HostArray) -> mx.array:
    return mx.array(np.frombuffer(one.data, np.uint8)).view(one.dtype).reshape(one.shape)
