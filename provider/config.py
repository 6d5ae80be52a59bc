"""What a provider is told: flags beat environment beats provider.toml beats defaults, validated once.

Every `_gb` key is GiB, decimals allowed. An unparsable file, an unknown key or a value of the wrong form is a
ConfigError that names the key and the accepted form.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provider.data_dir import why_unusable
from provider.errors import ConfigError
from provider.exact.policy import Mode as ExactMode
from provider.lane_file import DIRECTORY as LANES_DIRECTORY
from provider.memory.caps import CAP_FRACTION, GIB, cap_fraction, gib_to_bytes
from provider.mtp.policy import Mode as MtpMode
from provider.mtp.policy import is_killed
from provider.parking.files import DIRECTORY
from provider.parking.knobs import DEFAULT_KNOBS, DEFAULT_RAM_GB, Knobs, ParkSpec, knobs_in
from provider.system_memory import MemoryKind
from provider.wire_limits import MOST_BYTES, MOST_LABEL, MOST_NUMBER

NoticeMode = Literal["comment", "chunk", "off"]
BackendName = Literal["mlx", "sim"]

MOST_SHOWN = 80
EXACT_VARIABLE = "DARKBLOOM_EXACT"

Positive = Annotated[int, Field(ge=1, le=MOST_NUMBER)]
Positions = Annotated[int, Field(ge=2, le=MOST_NUMBER)]
"""Token positions: room for a prompt and for what it is answered with."""
Gb = Annotated[float, Field(ge=0, le=MOST_BYTES // GIB, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Told = TypeVar("Told", bound=Section)


class ProviderSection(Section):
    memory_reserve_gb: Gb = 4.0
    memory_limit_gb: Gb | None = None
    name: Annotated[str, Field(max_length=MOST_LABEL)] | None = None


class EngineSection(Section):
    mtp_mode: MtpMode = "auto"
    exact: ExactMode = "off"
    preempt_ram_gb: Gb | None = None
    preempt_disk_gb: Gb | None = None
    max_concurrent: Positive = 8
    context_length: Positions | None = None
    kv_pool_tokens: Positions | None = None
    mtp_drafter_path: str | None = None
    notices: NoticeMode = "comment"


class CoordinatorSection(Section):
    url: str | list[str] = Field(default_factory=list)
    ca: str | None = None


class ApiSection(Section):
    """Of `local`; a fleet's clients ask the coordinator."""

    api_key: Text | list[Text] = Field(default_factory=list)
    rate_limit: Positive | None = None
    cors_origin: Text | list[Text] = Field(default_factory=list)

    @property
    def keys(self) -> tuple[str, ...]:
        return _several(self.api_key)

    @property
    def origins(self) -> tuple[str, ...]:
        return _several(self.cors_origin)


DEFAULT_API = ApiSection()


class ModelsSection(Section):
    enabled: list[str] = Field(default_factory=list)
    preload: list[str] | None = None
    pinned: list[str] = Field(default_factory=list)
    idle_timeout_mins: Gb | None = None


class ConfigFile(Section):
    provider: ProviderSection = ProviderSection()
    engine: EngineSection = EngineSection()
    coordinator: CoordinatorSection = CoordinatorSection()
    models: ModelsSection = ModelsSection()
    api: ApiSection = ApiSection()


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """The one answer to every question of configuration. `max_waiting` bounds a model's waiting room."""

    provider: ProviderSection
    engine: EngineSection
    models: tuple[str, ...]
    coordinators: tuple[str, ...]
    data_dir: Path
    backend: BackendName = "mlx"
    coordinator_ca: Path | None = None
    """Whom it believes when it dials wss://; None: the system's authorities."""
    idle_timeout_mins: float | None = None
    preload: tuple[str, ...] | None = None
    """What is loaded at start, in this order; None: every model that is served, as far as memory allows."""
    pinned: tuple[str, ...] = ()
    """Never evicted and never timed out."""
    exact_told_by: str | None = None
    """Which flag, variable or key says what `engine.exact` is. None: none does, so a stored setting counts."""
    mtp_killed: bool = False
    cap_fraction: float = CAP_FRACTION
    activation_reserve_bytes: int | None = None
    max_waiting: int = 1024
    park_knobs: Knobs = DEFAULT_KNOBS
    api: ApiSection = DEFAULT_API

    @property
    def memory_reserve_bytes(self) -> int:
        return int(self.provider.memory_reserve_gb * GIB)

    @property
    def memory_limit_bytes(self) -> int | None:
        limit = self.provider.memory_limit_gb
        return None if limit is None else int(limit * GIB)

    @property
    def mtp_drafter_path(self) -> Path | None:
        path = self.engine.mtp_drafter_path
        return None if path is None else Path(path).expanduser()

    @property
    def park_directory(self) -> Path:
        return self.data_dir / DIRECTORY

    @property
    def lanes_directory(self) -> Path:
        return self.data_dir / LANES_DIRECTORY

    def park_spec(self, kind: MemoryKind) -> ParkSpec:
        """RAM is a place to park in only where models occupy another memory."""
        disk_gb, ram_gb = self.engine.preempt_disk_gb, self.engine.preempt_ram_gb
        told_ram_gb = DEFAULT_RAM_GB if ram_gb is None else ram_gb
        return ParkSpec(
            directory=str(self.park_directory),
            disk_bytes=None if disk_gb is None else int(disk_gb * GIB),
            ram_bytes=int(told_ram_gb * GIB) if kind == "discrete" else 0,
            knobs=self.park_knobs,
        )

    def without_effect(self, kind: MemoryKind) -> list[str]:
        """The keys that are set and that change nothing on a machine with this kind of memory; start-up warns of
        each."""
        return ["engine.preempt_ram_gb"] if self.engine.preempt_ram_gb and kind != "discrete" else []


def default_config_file() -> Path:
    return Path.home() / ".config" / "darkbloom" / "provider.toml"


def data_directory(flag: Path | None, env: Mapping[str, str] = os.environ) -> Path:
    told = flag or env.get("DARKBLOOM_DATA_DIR")
    return Path(told).expanduser().absolute() if told else Path.home() / ".local" / "share" / "darkbloom"


def make_data_directory(data_dir: Path) -> None:
    """Raises ConfigError when it cannot be made or written to."""
    why = why_unusable(data_dir)
    if why is not None:
        raise ConfigError(why)


def read_config(
    flags: Mapping[str, Any],
    models: tuple[str, ...] = (),
    coordinators: tuple[str, ...] = (),
    name: str | None = None,
    backend: BackendName = "mlx",
    data_dir: Path | None = None,
    file: Path | None = None,
    env: Mapping[str, str] = os.environ,
    api: Mapping[str, Any] | None = None,
    coordinator_ca: Path | None = None,
) -> ProviderConfig:
    """`flags` and `api`: keys of these sections as given on the command line, None where they were not."""
    told = _read_file(file or default_config_file())
    given = {key: value for key, value in flags.items() if value is not None}
    exact_told_by = _who_tells_exact(given, env, told.engine)
    if exact_told_by == EXACT_VARIABLE:
        given["exact"] = _exact_in(env)
    provider = _override(told.provider, {} if name is None else {"name": name})
    urls = told.coordinator.url if isinstance(told.coordinator.url, list) else [told.coordinator.url]
    told_ca = None if told.coordinator.ca is None else Path(told.coordinator.ca).expanduser()
    return ProviderConfig(
        provider=provider,
        engine=_override(told.engine, given),
        models=models or tuple(told.models.enabled),
        coordinators=coordinators or tuple(urls),
        data_dir=data_directory(data_dir, env),
        backend=backend,
        coordinator_ca=coordinator_ca or told_ca,
        idle_timeout_mins=told.models.idle_timeout_mins,
        preload=None if told.models.preload is None else tuple(told.models.preload),
        pinned=tuple(told.models.pinned),
        cap_fraction=cap_fraction(env.get("DARKBLOOM_MEM_CAP_FRACTION")),
        activation_reserve_bytes=gib_to_bytes(env.get("DARKBLOOM_ACTIVATION_RESERVE_GB")),
        exact_told_by=exact_told_by,
        mtp_killed=is_killed(env.get("DARKBLOOM_MTP")),
        park_knobs=knobs_in(env),
        api=_override(told.api, {key: value for key, value in (api or {}).items() if value is not None}),
    )


def _several(told: str | list[str]) -> tuple[str, ...]:
    return (told,) if isinstance(told, str) else tuple(told)


def _override(section: Told, given: Mapping[str, Any]) -> Told:
    try:
        return type(section).model_validate({**section.model_dump(), **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise ConfigError(f"{flag} {_short(first.get('input'))}: {first['msg']}") from None


def _short(told: object) -> str:
    shown = repr(told)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def _who_tells_exact(flags: Mapping[str, Any], env: Mapping[str, str], file: EngineSection) -> str | None:
    if "exact" in flags:
        return "--exact"
    if env.get(EXACT_VARIABLE):
        return EXACT_VARIABLE
    return "engine.exact in provider.toml" if "exact" in file.model_fields_set else None


def _exact_in(env: Mapping[str, str]) -> str:
    mode = env[EXACT_VARIABLE].strip().lower()
    if mode not in get_args(ExactMode):
        raise ConfigError(f"{EXACT_VARIABLE}={env[EXACT_VARIABLE]!r}: say off, auto or on.")
    return mode


def _read_file(path: Path) -> ConfigFile:
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return ConfigFile()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return ConfigFile.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # A section and its key; what follows in the location is pydantic's own (the branch of a union).
        key = ".".join(str(part) for part in first["loc"][:2])
        said = (
            "is not a known key"
            if first["type"] == "extra_forbidden"
            else f"= {_short(first['input'])}: {first['msg']}"
        )
        raise ConfigError(f"{path}: {key} {said}") from None
