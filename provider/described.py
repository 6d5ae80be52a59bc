"""`doctor --facts FILE`: a machine that somebody describes, as JSON, instead of the one at hand."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provider.errors import ConfigError
from provider.fitness import Candidate, MachineFacts
from provider.memory.caps import cap_fraction, gib, gib_to_bytes

Bytes = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
RESERVE_VARIABLE = "DARKBLOOM_ACTIVATION_RESERVE_GB"
FRACTION_VARIABLE = "DARKBLOOM_MEM_CAP_FRACTION"


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DescribedModel(Described):
    id: Name
    size_bytes: Bytes
    model_type: str = ""
    vision: bool = False


class DescribedMachine(Described):
    """`os_available_bytes` null: the system does not tell. `advertised` null: unknown; []: nothing, for certain."""

    physical_bytes: Annotated[int, Field(gt=0)]
    os_available_bytes: Bytes | None
    mlx_active_bytes: Bytes = 0
    mlx_cache_bytes: Bytes = 0
    memory_kind: Literal["unified", "discrete", "host"] = "unified"
    memory_reserve_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 4.0
    advertised: list[Name] | None = None
    resident: dict[Name, Bytes] = Field(default_factory=dict)
    models: Annotated[list[DescribedModel], Field(min_length=1)]
    target: Name


def read_described(path: Path, target: str | None = None, env: Mapping[str, str] = os.environ) -> MachineFacts:
    """`target` replaces the file's own. Raises ConfigError, naming the key, for a file that does not describe one."""
    try:
        told = DescribedMachine.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_said(error)}") from None
    ids = [one.id for one in told.models]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{path}: models: every id may be there once.")
    asked = target or told.target
    if asked not in ids:
        raise ConfigError(f"{path}: target: {asked!r} is not one of models ({', '.join(ids)}).")
    return _facts(told, asked, env)


def _facts(told: DescribedMachine, target: str, env: Mapping[str, str]) -> MachineFacts:
    """Of models that are only described, no more is known than that they need the whole smallest KV."""
    return MachineFacts(
        physical_bytes=told.physical_bytes,
        available_bytes=told.os_available_bytes,
        active_bytes=told.mlx_active_bytes,
        cache_bytes=told.mlx_cache_bytes,
        reserve_bytes=gib(told.memory_reserve_gb),
        cap_fraction=cap_fraction(env.get(FRACTION_VARIABLE)),
        told_reserve_bytes=gib_to_bytes(env.get(RESERVE_VARIABLE)),
        advertised=None if told.advertised is None else tuple(told.advertised),
        resident=told.resident,
        models=tuple(Candidate(id=one.id, size_bytes=one.size_bytes, vision=one.vision) for one in told.models),
        target=target,
    )


def _said(error: ValidationError) -> str:
    """The first fault, by its key."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "json_invalid":
            return f"no JSON: {first['msg']}."
        case "extra_forbidden":
            return f"{key} is not a known key."
        case "missing":
            return f"{key} is missing."
        case _:
            return f"{key or 'the whole file'} = {_short(first['input'])}: {first['msg']}."


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
