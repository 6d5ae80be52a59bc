"""Which files hold a checkpoint's weights, and what the index says should be in them."""

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.errors import ModelError
from provider.models.json_file import read_json_object
from provider.models.safetensors_header import REMEDY, SafetensorsHeader, TensorInfo, read_header

INDEX_NAME = "model.safetensors.index.json"
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a checkpoint, over all its files. Only headers have been read."""

    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors.values())


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The files the index names, or without an index every safetensors file and every shard it implies.

    A file named here may be missing. Raises ModelError when there are none, or the index is broken.
    """
    index = directory / INDEX_NAME
    return _in(directory, _checked(_listed(index), index).values() if index.exists() else _implied(directory))


def read_weights(directory: Path, head_prefix: str | None = None) -> Weights:
    """Raises ModelError, naming the file, for a missing or broken one or a misplaced tensor.

    What the index lists under `head_prefix` is an embedded prediction head: it counts as far as it can be read, for
    the model is served without it too.
    """
    index = directory / INDEX_NAME
    trunk, head = _split(_listed(index), head_prefix) if index.exists() else ({}, {})
    files = _in(directory, _checked(trunk, index).values()) if index.exists() else weight_files(directory)
    headers = {path.name: read_header(path) for path in files}
    _check_against_index(directory, trunk, headers)
    headers |= _readable(directory, set(filter(_is_file_name, head.values())) - headers.keys())
    tensors = {name: tensor for header in headers.values() for name, tensor in header.tensors.items()}
    return Weights(_in(directory, headers), tensors)


def weight_digest(directory: Path) -> str:
    """SHA-256, in hex, over the lines `<name> <SHA-256 of the whole file>` of the weight files in name order.

    Covers every byte of the weights, so it reads all of them: seconds per 10 GB, for whoever asks.
    """
    lines = hashlib.sha256()
    for path in weight_files(directory):
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror}): {REMEDY}.") from error
        lines.update(f"{path.name} {content}\n".encode())
    return lines.hexdigest()


def _in(directory: Path, names: Iterable[str]) -> tuple[Path, ...]:
    found = tuple(directory / name for name in sorted(set(names)))
    if not found:
        raise ModelError(f"{directory} has no *.safetensors weights: {REMEDY}, or convert it to safetensors.")
    return found


def _listed(index: Path) -> dict[str, Any]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index} has no usable weight_map: {REMEDY}.")
    return weight_map


def _split(weight_map: dict[str, Any], head_prefix: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is not a head's, and what is."""
    head = {name: file for name, file in weight_map.items() if head_prefix and name.startswith(head_prefix)}
    return {name: file for name, file in weight_map.items() if name not in head}, head


def _checked(weight_map: dict[str, Any], index: Path) -> dict[str, str]:
    if not all(map(_is_file_name, weight_map.values())):
        raise ModelError(f"{index} has no usable weight_map: {REMEDY}.")
    return weight_map


def _readable(directory: Path, names: Iterable[str]) -> dict[str, SafetensorsHeader]:
    found = {}
    for name in names:
        with suppress(ModelError):
            found[name] = read_header(directory / name)
    return found


def _is_file_name(name: object) -> bool:
    """A bare name: an index must not lead outside its directory."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _implied(directory: Path) -> set[str]:
    present = {path.name for path in directory.glob("*.safetensors")}
    implied = set(present)
    for match in filter(None, map(SHARD.fullmatch, present)):
        count = int(match["count"])
        implied |= {f"{match['stem']}-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)}
    return implied


def _check_against_index(directory: Path, weight_map: dict[str, str], headers: dict[str, SafetensorsHeader]) -> None:
    for tensor, file_name in weight_map.items():
        if tensor not in headers[file_name].tensors:
            raise ModelError(f"{directory / file_name} lacks {tensor}, which the index lists: {REMEDY}.")
