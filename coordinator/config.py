"""What a coordinator is told at start: flags beat environment beats defaults."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.errors import BadConfiguration
from coordinator.tls import Tls
from provider.protocol import HEARTBEAT_S, LISTED_AFTER_LOSS_S, LOST_AFTER_S, RESUME_WITHIN_S, SUSPECT_AFTER_S

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080
MOST_WAITING = 1000
"""Requests that wait for one model."""
MOST_PROVIDERS, MOST_PROVIDERS_OF_A_TOKEN = 20_000, 5_000
"""That are connected, or may still come back to their answers."""
DEFAULT_DATA_DIR = Path("~/.local/share/darkbloom")
RESUME_WITHIN = "DARKBLOOM_RESUME_WITHIN_S"
LONGEST_WAIT_S = 3600
LARGEST_COUNT = 10**6
SECRET_FORM = re.compile(r"dbk_[A-Za-z0-9_-]{32,}")


@dataclass(frozen=True, slots=True)
class Timings:
    """Every clock of the coordinator (docs/protocol.md); tests shorten them."""

    heartbeat_s: float = HEARTBEAT_S
    suspect_after_s: float = SUSPECT_AFTER_S
    lost_after_s: float = LOST_AFTER_S
    listed_after_loss_s: float = LISTED_AFTER_LOSS_S
    register_within_s: float = 10
    wait_s: float = 120
    """How long a request waits for a place at a provider."""
    away_s: float = 10
    """How long a provider whose connection was lost is hoped for by those who wait."""
    resume_within_s: float = RESUME_WITHIN_S
    """How long the answers of a provider whose connection was lost wait for it to come back."""
    failover_after_s: float = 5
    """How long a request of which no chunk has come waits so, when another provider could take it."""
    accept_within_s: float = 30
    silence_s: float = 600
    """How long an accepted request may stay without a frame."""
    longest_park_s: float = 1800
    """How long a parked request may be kept alive by notices."""
    deadline_s: float = 3600
    """What a provider is given for a whole request, from its receipt."""
    drain_s: float = 20
    flush_s: float = 5
    """How long the end waits for a store that is away."""
    key_fresh_s: float = 3
    """How long a revoked key may still be taken."""
    reference_s: float = 10
    """How old the tables and the desired models may be that another coordinator, or an operator, has changed."""
    place_s: float = 5
    """How often it is looked where models are to be kept warm."""
    load_s: float = 600
    """How long an operator's load or unload is waited for: the chats of a model that leaves end first."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient the placing of models is (coordinator.placement)."""

    start_s: float = 60.0
    """After its start a coordinator waits for the providers to dial it before it finds anything missing."""
    settle_s: float = 10.0
    """A pool has to be short for so long."""
    believed_s: float = 45.0
    """A provider that has dialled again is believed for so long to hold what it held, until its first heartbeat."""
    load_s: float = 600.0
    """A load that is not done by then has failed."""
    kept_s: float = 600.0
    """A model that was loaded by order and has left before that counts as a failed load."""
    first_retry_s: float = 30.0
    last_retry_s: float = 3600.0
    per_minute: int = 12
    """Orders to the whole fleet."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many providers may be connected, or come back to their answers: of one token, and in all."""

    of_a_token: int = MOST_PROVIDERS_OF_A_TOKEN
    in_all: int = MOST_PROVIDERS


@dataclass(frozen=True, slots=True)
class UpSecrets:
    """The pair of secrets that the process which started this coordinator has made for it."""

    api_key: str = field(repr=False)
    provider_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """`database_url` None means the embedded Postgres of the data directory."""

    data_dir: Path
    database_url: str | None = field(default=None, repr=False)
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    up: UpSecrets | None = None
    timings: Timings = Timings()
    pace: Pace = Pace()
    bounds: Bounds = Bounds()
    most_waiting: int = MOST_WAITING
    tls: Tls | None = None


def settings(
    environment: Mapping[str, str],
    *,
    data_dir: Path | None = None,
    database_url: str | None = None,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> Settings:
    """Raises BadConfiguration."""
    directory = data_dir or Path(environment.get("DARKBLOOM_DATA_DIR") or DEFAULT_DATA_DIR)
    return Settings(
        data_dir=directory.expanduser().absolute(),
        database_url=database_url or environment.get("DARKBLOOM_DATABASE_URL") or None,
        host=host,
        port=port,
        up=_up_secrets(environment),
        timings=Timings(resume_within_s=_seconds(environment, RESUME_WITHIN, RESUME_WITHIN_S)),
        bounds=Bounds(
            of_a_token=_count(environment, "DARKBLOOM_MOST_PROVIDERS_PER_TOKEN", MOST_PROVIDERS_OF_A_TOKEN),
            in_all=_count(environment, "DARKBLOOM_MOST_PROVIDERS", MOST_PROVIDERS),
        ),
        most_waiting=_count(environment, "DARKBLOOM_MOST_WAITING", MOST_WAITING),
        tls=_tls(tls_cert, tls_key),
    )


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise BadConfiguration("--tls-cert and --tls-key come together: pass the PEM files of both.")
    tls = Tls(certificate, key)
    tls.loaded()
    return tls


def _seconds(environment: Mapping[str, str], name: str, otherwise: float) -> float:
    told = environment.get(name)
    if not told:
        return otherwise
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_WAIT_S:
        raise BadConfiguration(f"{name}={told}: must be a number of seconds between 0 and {LONGEST_WAIT_S}.")
    return seconds


def _count(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    told = environment.get(name)
    if not told:
        return otherwise
    if not (told.isascii() and told.isdecimal() and 1 <= int(told[:10]) <= LARGEST_COUNT):
        raise BadConfiguration(f"{name}={told[:40]}: must be a whole number between 1 and {LARGEST_COUNT}.")
    return int(told)


def _up_secrets(environment: Mapping[str, str]) -> UpSecrets | None:
    key = environment.get("DARKBLOOM_UP_API_KEY")
    token = environment.get("DARKBLOOM_UP_PROVIDER_TOKEN")
    if key is None and token is None:
        return None
    return UpSecrets(
        api_key=_secret("DARKBLOOM_UP_API_KEY", key),
        provider_token=_secret("DARKBLOOM_UP_PROVIDER_TOKEN", token),
    )


def _secret(name: str, value: str | None) -> str:
    if value is None or not SECRET_FORM.fullmatch(value):
        raise BadConfiguration(f"{name} must be dbk_ and at least 32 URL-safe characters.")
    return value
