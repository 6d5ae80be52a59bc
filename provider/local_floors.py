"""Activation floors measured on this machine (`bench activation --install`): `floors.json` in the data directory.

An entry holds for one set of weights, by their digest, on one device. It never stands in for a shipped floor, nor for
a model that sees images.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provider.errors import ModelError
from provider.hardware import Hardware, memory_in_use
from provider.identity import write_atomically
from provider.models.checkpoint import Checkpoint

log = logging.getLogger(__name__)

FILE_NAME = "floors.json"


class LocalFloor(BaseModel):
    """`model` is for people; what counts is the digest. `size_bytes` tells without hashing that weights are others."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str
    weight_digest: str
    size_bytes: int
    device: str
    floor_bytes: Annotated[int, Field(gt=0)]
    activation_bytes: Annotated[int, Field(ge=0)]
    measured_on: str


class FloorsFile(BaseModel):
    floors: list[LocalFloor] = Field(default_factory=list)


def device_key(hardware: Hardware) -> str:
    """`unified: Apple M2 Max`, `discrete: NVIDIA H200`."""
    return f"{memory_in_use(hardware.memory_kind)}: {hardware.chip or hardware.machine}"


def install(data_dir: Path, entry: LocalFloor) -> Path:
    """Replaces what was measured of the same weights on the same device."""
    key = (entry.weight_digest, entry.device)
    kept = [one for one in read_floors(data_dir) if (one.weight_digest, one.device) != key]
    path = data_dir / FILE_NAME
    write_atomically(path, FloorsFile(floors=[*kept, entry]).model_dump_json(indent=1))
    return path


def read_floors(data_dir: Path) -> list[LocalFloor]:
    """Nothing, and a warning, for a file that cannot be used: the default floor is always safe."""
    path = data_dir / FILE_NAME
    try:
        return FloorsFile.model_validate_json(path.read_bytes()).floors
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        log.warning("local_floors_unusable path=%s error=%s", path, error)
        return []


def local_floors(data_dir: Path, device: str, models: Mapping[str, Checkpoint]) -> dict[str, int]:
    """Floor in bytes of each of `models` that was measured here on `device` (device_key).

    Hashes the weights of those that have an entry by their size: seconds per 10 GB.
    """
    entries = [one for one in read_floors(data_dir) if one.device == device]
    found = {id: _floor_of(checkpoint, entries) for id, checkpoint in models.items()}
    return {id: floor for id, floor in found.items() if floor is not None}


def _floor_of(checkpoint: Checkpoint, entries: list[LocalFloor]) -> int | None:
    alike = {one.weight_digest: one.floor_bytes for one in entries if one.size_bytes == checkpoint.size_bytes}
    if checkpoint.vision or not alike:
        return None
    try:
        return alike.get(checkpoint.digest())
    except ModelError as error:
        log.warning("local_floor_unverified error=%s", error)
        return None
