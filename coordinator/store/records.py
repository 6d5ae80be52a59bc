"""What the store holds, as frozen values: rows do not leave this package."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from provider.memory.floors import Floor
from provider.protocol import DesiredModel, DesiredModels


class TokenKind(StrEnum):
    PROVIDER = "provider"
    API = "api"
    ADMIN = "admin"


class JobOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    """What was asked for could not be had of anybody: the fault of the request."""
    CANCELLED = "cancelled"
    """The client went away."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What an API key may use; None: no such limit. The rates are each coordinator's own, not the fleet's."""

    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def allow(self, model: str) -> bool:
        return self.models is None or model in self.models


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Token:
    """A key without its secret, of which only the SHA-256 is stored."""

    id: int
    kind: TokenKind
    name: str
    created_at: datetime
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    limits: KeyLimits = UNLIMITED


@dataclass(frozen=True, slots=True)
class Usage:
    """One job, written once. Token counts are None where the provider never said and nothing was delivered."""

    job_id: str
    token_id: int
    endpoint: str
    model: str
    provider_id: str | None
    attempts: int
    outcome: JobOutcome
    code: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    chunks: int
    parks: int
    recomputes: int
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Sighting:
    """A provider registered, or left."""

    provider_id: str
    name: str
    version: str
    backend: str
    chip: str
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Touch:
    """A key was used."""

    token_id: int
    used_at: datetime


Record = Usage | Sighting | Touch


@dataclass(frozen=True, slots=True)
class Residency:
    """Measured weights of a loaded model. `since` is the first release of the provider that holds them."""

    resident_bytes: int
    basis: str
    since: str


@dataclass(frozen=True, slots=True)
class MemoryTables:
    """What has been measured of models, by exact id."""

    floors: Mapping[str, Floor]
    residency: Mapping[str, Residency]


@dataclass(frozen=True, slots=True)
class Pool:
    """Of the providers whose names match the glob, so many shall hold the model loaded."""

    providers: str
    min_warm: int


@dataclass(frozen=True, slots=True)
class Desired:
    """A model that every provider shall be able to serve, and where it shall be kept loaded."""

    model: DesiredModel
    pools: tuple[Pool, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredList:
    revision: int
    models: tuple[Desired, ...]

    @property
    def message(self) -> DesiredModels:
        """What providers are told: where a model is kept loaded is the coordinators' business."""
        return DesiredModels(revision=self.revision, models=[one.model for one in self.models])


class Grouping(StrEnum):
    """What a report of usage can be broken down by. Days are UTC, of the end of a job."""

    KEY = "key"
    MODEL = "model"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """The jobs of one group; what the report is not broken down by is None. `key_name` None: the key's row is gone."""

    key_id: int | None
    key_name: str | None
    model: str | None
    day: date | None
    requests: int
    completed: int
    failed: int
    refused: int
    cancelled: int
    prompt_tokens: int
    completion_tokens: int
    parks: int
    recomputes: int
