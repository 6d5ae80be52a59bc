"""This machine as facts to judge: with the running provider's own word where it is fresh, else as after a start."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from provider.config import ProviderConfig
from provider.described import FRACTION_VARIABLE, RESERVE_VARIABLE
from provider.errors import ModelError
from provider.fitness import Candidate, MachineFacts
from provider.hardware import Hardware, memory_in_use
from provider.local_floors import device_key, local_floors
from provider.memory.caps import cap_fraction, effective_cap, gib_to_bytes, minimum_serviceable_kv
from provider.memory.floors import DEFAULT_FLOOR_BYTES, FloorTable, floor, floor_table
from provider.memory.requirement import sequence_bytes
from provider.memory_findings import MemoryFacts
from provider.models.checkpoint import read_checkpoint
from provider.models.commands import models_on_disk
from provider.models.inspection import Inspection, inspect_model
from provider.models.resolve import find_model
from provider.probes import MlxOutcome
from provider.programs import largest_programs
from provider.running import Running, read_running
from provider.system_memory import MemoryKind, SystemMemory, read_system_memory


@dataclass(frozen=True, slots=True)
class Known:
    """A model of this machine that could be served."""

    id: str
    inspection: Inspection


def read_memory_facts(
    config: ProviderConfig,
    hardware: Hardware,
    mlx: MlxOutcome,
    asked: Sequence[Known],
    env: Mapping[str, str] = os.environ,
) -> MemoryFacts:
    """Looks at everything once; `asked` are the models in question."""
    now_s = time.time()
    kind = memory_in_use(hardware.memory_kind)
    memory = read_memory(kind, mlx)
    running = read_running(config.data_dir, now_s)
    known = [*asked, *servable_beside(asked, env)]
    floors = _floors_here(config, hardware, known)
    configured = [_id_of(name) for name in config.models]
    machines = (machine_facts(memory, config, known, one.id, floors, configured, running, env) for one in asked)
    fraction = cap_fraction(env.get(FRACTION_VARIABLE))
    return MemoryFacts(
        memory=memory,
        kind=kind,
        cap_bytes=None
        if memory.physical_bytes is None
        else effective_cap(memory.physical_bytes, config.memory_reserve_bytes, config.memory_limit_bytes, fraction),
        machines=tuple(one for one in machines if one is not None),
        programs=tuple(largest_programs(without=[] if running is None else [running.pid])),
        running=running,
        now_s=now_s,
    )


def machine_facts(
    memory: SystemMemory,
    config: ProviderConfig,
    known: Sequence[Known],
    target: str,
    floors: FloorTable,
    configured: Iterable[str],
    running: Running | None,
    env: Mapping[str, str] = os.environ,
) -> MachineFacts | None:
    """`floors`: shipped and measured here; `configured`: ids that a start would advertise. None when the size of the
    memory or of the target's weights is unknown."""
    models = [one for one in (_candidate(each, config) for each in known) if one is not None]
    if memory.physical_bytes is None or target not in {one.id for one in models}:
        return None
    offline = MachineFacts(
        physical_bytes=memory.physical_bytes,
        available_bytes=memory.available_bytes,
        reserve_bytes=config.memory_reserve_bytes,
        limit_bytes=config.memory_limit_bytes,
        cap_fraction=cap_fraction(env.get(FRACTION_VARIABLE)),
        told_reserve_bytes=gib_to_bytes(env.get(RESERVE_VARIABLE)),
        advertised=tuple(configured) or None,
        models=tuple(models),
        target=target,
        floors=floors,
    )
    return offline if running is None or not running.fresh else _with_running(offline, running)


def _with_running(offline: MachineFacts, running: Running) -> MachineFacts:
    """The target's own memory, where it is loaded, is given back: the question is whether it fits here, and it is
    the one that has it."""
    own = _own_bytes(offline.target, running)
    others = {id: size for id, size in running.resident.items() if id in running.idle and id != offline.target}
    available = offline.available_bytes
    return replace(
        offline,
        available_bytes=None if available is None else min(offline.physical_bytes, available + own),
        active_bytes=max(0, running.active_bytes - own),
        cache_bytes=0 if _alone(offline.target, running) else running.cache_bytes,
        told_reserve_bytes=_told_reserve(offline, running),
        advertised=running.advertised,
        resident=others,
        floors=_floors(offline.floors, running),
    )


def _own_bytes(target: str, running: Running) -> int:
    """Weights, and all else too when no other model is loaded."""
    if _alone(target, running):
        return running.active_bytes + running.cache_bytes
    return min(running.active_bytes, running.resident.get(target, 0))


def _alone(target: str, running: Running) -> bool:
    return running.resident.keys() == {target}


def _floors(floors: FloorTable, running: Running) -> FloorTable:
    """A model that the provider serves and that is not known here has at most the floor of the provider's reserve."""
    if running.reserve_bytes is None or not running.advertised:
        return floors
    bound = min(DEFAULT_FLOOR_BYTES, running.reserve_bytes)
    served = {*running.advertised, *running.resident}
    return {**dict.fromkeys(served, bound), **floors}


def _told_reserve(offline: MachineFacts, running: Running) -> int | None:
    """The provider's environment may raise its reserve where this command's does not: its own figure tells."""
    told, reported = offline.told_reserve_bytes, running.reserve_bytes
    if reported is None or reported <= floor(running.advertised or (), _floors(offline.floors, running)):
        return told
    return max(told or 0, reported)


def _candidate(known: Known, config: ProviderConfig) -> Candidate | None:
    found, engine = known.inspection, config.engine
    size, kv, state, trained = found.size_bytes, found.kv_bytes_per_token, found.state_bytes, found.context_length
    if size is None:
        return None
    if kv is None or state is None or trained is None:
        return Candidate(id=known.id, size_bytes=size, vision=found.vision)
    context = engine.context_length or trained
    if engine.kv_pool_tokens is not None:
        context = min(context, engine.kv_pool_tokens)
    minimum = minimum_serviceable_kv(sequence_bytes(context, state, kv), engine.max_concurrent)
    return Candidate(id=known.id, size_bytes=size, vision=found.vision, minimum_kv_bytes=minimum)


def read_memory(kind: MemoryKind, mlx: MlxOutcome) -> SystemMemory:
    """Of a discrete GPU, MLX knows what its driver's tool does not tell."""
    found = read_system_memory(kind)
    if kind != "discrete" or found.physical_bytes is not None:
        return found
    return replace(found, physical_bytes=mlx.total_bytes, available_bytes=mlx.free_bytes)


def servable_beside(asked: Sequence[Known], env: Mapping[str, str]) -> list[Known]:
    """Every other model on this machine that is whole and of a served family."""
    found, ids = [], {one.id for one in asked}
    for model in models_on_disk(env):
        try:
            inspection = inspect_model(model.directory)
        except ModelError:
            continue
        if model.id not in ids and inspection.unsupported is None and not inspection.problems:
            found.append(Known(model.id, inspection))
    return found


def _floors_here(config: ProviderConfig, hardware: Hardware, known: Sequence[Known]) -> FloorTable:
    whole = {}
    for one in known:
        try:
            whole[one.id] = read_checkpoint(one.inspection.directory)
        except ModelError:
            continue
    return floor_table(local_floors(config.data_dir, device_key(hardware), whole))


def _id_of(name: str) -> str:
    try:
        return find_model(name).id
    except ModelError:
        return name
