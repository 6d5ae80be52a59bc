"""Reads the files of a head with the limits of an inspection: small, regular, and saying nothing twice."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provider.errors import ModelError
from provider.models.safetensors_header import TensorInfo, read_header
from provider.mtp.faults import Fault

MAX_JSON_BYTES = 2**20
MAX_HEADER_BYTES = 16 * 2**20
MAX_NAME_BYTES = 255


def read_small(path: Path) -> bytes:
    """The whole of a config or an index. Raises Fault when it is missing, empty, too large or no regular file."""
    _check_regular(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise Fault(f"cannot be read: {error}", path) from error
    if not raw:
        raise Fault("is empty", path)
    if len(raw) > MAX_JSON_BYTES:
        raise Fault("is larger than 1 MiB", path)
    return raw


def parse_object(raw: bytes, path: Path) -> dict[str, Any]:
    """Raises Fault for what is not a JSON object, or gives one key two values."""
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Fault(f"is not usable JSON: {error}", path) from error
    if not isinstance(value, dict):
        raise Fault("does not hold a JSON object", path)
    return value


def weight_map(index: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Tensor -> file, of the index at `path`. Raises Fault for a name that could lead out of its directory."""
    found = index.get("weight_map")
    if not isinstance(found, dict):
        raise Fault("has no weight_map", path)
    for tensor, name in found.items():
        if not _is_shard_name(name):
            raise Fault(f"weight_map gives {tensor:.80} the file {name!r:.80}: not a bare *.safetensors name", path)
    return found


def read_shard(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file, from its header. A link is followed, as in a hub's cache. Raises Fault."""
    _check_regular(path)
    try:
        return read_header(path, MAX_HEADER_BYTES).tensors
    except ModelError as error:
        raise Fault(f"is not usable: {error}", path) from error


def read_bytes(path: Path, offset: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise Fault(f"cannot be read: {error}", path) from error


def byte_length(name: str) -> int:
    """In UTF-8; JSON can spell halves of a pair, which have no encoding of their own."""
    return len(name.encode(errors="surrogatepass"))


def _check_regular(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise Fault("is missing", path) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
        raise Fault(f"cannot be read: {error}", path) from error
    if not stat.S_ISREG(mode):
        raise Fault("is not a regular file", path)


def _is_shard_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and Path(name).name == name
        and "\\" not in name
        and "\0" not in name
        and byte_length(name) <= MAX_NAME_BYTES
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found
