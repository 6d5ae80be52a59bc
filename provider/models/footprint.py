"""What serving a model alone asks of a machine: the gate's requirement, and the smallest machine that meets it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from provider.config import EngineSection, data_directory
from provider.errors import ModelError
from provider.hardware import read_hardware
from provider.local_floors import device_key, local_floors, read_floors
from provider.memory.caps import gib_to_bytes, minimum_serviceable_kv
from provider.memory.fit import Machine, smallest_machine
from provider.memory.floors import FloorTable, activation_reserve, floor_table
from provider.memory.requirement import Charge, required_for_load, sequence_bytes
from provider.models.checkpoint import read_checkpoint
from provider.models.inspection import Inspection

DEFAULT_MAX_CONCURRENT = EngineSection().max_concurrent


@dataclass(frozen=True, slots=True)
class Footprint:
    """`machine` None: no machine that is sold is large enough."""

    required_bytes: int
    machine: Machine | None


def footprint(
    id: str, found: Inspection, floors: FloorTable, told_reserve_bytes: int | None = None
) -> Footprint | None:
    """At its own floor, with eight chats and its whole context; None where a fault leaves a size unknown."""
    size, kv, state, context = found.size_bytes, found.kv_bytes_per_token, found.state_bytes, found.context_length
    if size is None or kv is None or state is None or context is None:
        return None
    minimum_kv = minimum_serviceable_kv(sequence_bytes(context, state, kv), DEFAULT_MAX_CONCURRENT)
    reserve = activation_reserve([id], floors, told_reserve_bytes)
    required = required_for_load(Charge(size), reserve, minimum_kv)
    return Footprint(required, smallest_machine(required))


def read_footprint(id: str, found: Inspection, env: Mapping[str, str] = os.environ) -> Footprint | None:
    """With the floors of this machine and the reserve of this environment."""
    seeing = [id] if found.vision else []
    floors = floor_table(_measured_here(id, found, env), seeing)
    return footprint(id, found, floors, gib_to_bytes(env.get("DARKBLOOM_ACTIVATION_RESERVE_GB")))


def _measured_here(id: str, found: Inspection, env: Mapping[str, str]) -> dict[str, int]:
    data_dir = data_directory(None, env)
    if not read_floors(data_dir):
        return {}
    try:
        return local_floors(data_dir, device_key(read_hardware()), {id: read_checkpoint(found.directory)})
    except ModelError:
        return {}
