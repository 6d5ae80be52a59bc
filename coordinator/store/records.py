"""What the store holds, as frozen values: rows do not leave this package."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from provider.memory.floors import Floor


class TokenKind(StrEnum):
    PROVIDER = "provider"
    API = "api"
    ADMIN = "admin"


class JobOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The client went away."""


@dataclass(frozen=True, slots=True)
class Token:
    """A key without its secret, of which only the SHA-256 is stored."""

    id: int
    kind: TokenKind
    name: str
    created_at: datetime
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


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
