"""What a safetensors file holds, read from its header without touching the weights.

Format: an unsigned 64-bit little-endian header length, that many bytes of JSON (name -> dtype, shape and
data offsets counted from the end of the header), then the payload. https://github.com/huggingface/safetensors
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.errors import ModelError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

REMEDY = "download the model again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    dtype: str
    """As safetensors names it: BF16, F32, U32 ..."""
    shape: tuple[int, ...]
    offset: int
    """Of its first byte, from the beginning of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    tensors: dict[str, TensorInfo]


def read_header(path: Path, max_header_bytes: int = MAX_HEADER_BYTES) -> SafetensorsHeader:
    """Raises ModelError, naming the file, when it is missing, cut short or not safetensors."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            raw = file.read(length) if 2 <= length <= max_header_bytes else b""
        file_bytes = path.stat().st_size
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: {REMEDY}.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error
    if not raw or len(raw) < length:
        raise ModelError(f"{path} is cut short or not a safetensors file: {REMEDY}.")
    tensors = _parse(path, raw)
    end = max((tensor.offset + tensor.size_bytes for tensor in tensors.values()), default=0)
    if file_bytes < end:
        raise ModelError(f"{path} is cut short by {end - file_bytes} bytes: {REMEDY}.")
    return SafetensorsHeader(tensors)


def _parse(path: Path, raw: bytes) -> dict[str, TensorInfo]:
    payload = 8 + len(raw)
    try:
        entries = json.loads(raw)
        return {name: _tensor(entry, payload) for name, entry in entries.items() if name != "__metadata__"}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ModelError(f"{path} has a damaged safetensors header: {REMEDY}.") from error


def _tensor(entry: dict[str, Any], payload: int) -> TensorInfo:
    start, stop = entry["data_offsets"]
    if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop):
        raise ValueError("offsets out of order")
    shape = tuple(int(size) for size in entry["shape"])
    return TensorInfo(str(entry["dtype"]), shape, payload + start, stop - start)
