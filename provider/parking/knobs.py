"""What operators and tests may tell of parking, and how a worker hears of it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from provider.errors import ConfigError
from provider.memory.caps import GIB
from provider.parking.lot import Tiers
from provider.scheduler.parking import ParkRules, Policy

POLICY, EVERY = "DARKBLOOM_PREEMPT_POLICY", "DARKBLOOM_PREEMPT_EVERY"
HOLD_S, FAIL_SAVE = "DARKBLOOM_PREEMPT_HOLD_S", "DARKBLOOM_PREEMPT_FAIL_SAVE"
MOST_DISK_BYTES = 20 * GIB
DISK_SHARE = 0.1
"""Of what is free when the model is loaded."""
DEFAULT_RAM_GB = 8.0


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """For experiments and tests: who is parked, `every` how many tokens a sequence is parked without need, for `hold_s`
    at least, and that every `fail_save`-th save fails."""

    policy: Policy = Policy.LEAST_LOST
    every: int | None = None
    hold_s: float = 0.0
    fail_save: int | None = None

    @property
    def rules(self) -> ParkRules:
        return ParkRules(self.policy, self.every, self.hold_s)


DEFAULT_KNOBS = Knobs()


class ParkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`disk_bytes` None: the default. `ram_bytes`: of host memory, where the model's own is another one."""

    directory: str
    disk_bytes: int | None = None
    ram_bytes: int = 0
    knobs: Knobs = DEFAULT_KNOBS

    def tiers(self) -> Tiers | None:
        """None where nothing is to be saved."""
        disk_bytes = default_disk_bytes(Path(self.directory)) if self.disk_bytes is None else self.disk_bytes
        if disk_bytes + self.ram_bytes == 0:
            return None
        return Tiers(disk_bytes, self.ram_bytes, self.knobs.fail_save)


def knobs_in(env: Mapping[str, str]) -> Knobs:
    """Raises ConfigError, naming the variable and the accepted form."""
    return Knobs(
        policy=_policy(env.get(POLICY)),
        every=_count(env, EVERY),
        hold_s=_seconds(env.get(HOLD_S)),
        fail_save=_count(env, FAIL_SAVE),
    )


def default_disk_bytes(directory: Path) -> int:
    """Of the disk that the directory is on, or will be; 0 where it cannot be told."""
    there = next((one for one in (directory, *directory.parents) if one.exists()), directory)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return 0
    return min(MOST_DISK_BYTES, int(free * DISK_SHARE))


def _policy(told: str | None) -> Policy:
    try:
        return Policy(told) if told else Policy.LEAST_LOST
    except ValueError:
        raise ConfigError(f"{POLICY} must be one of {', '.join(Policy)}, not {told!r}.") from None


def _count(env: Mapping[str, str], name: str) -> int | None:
    told = env.get(name)
    if not told:
        return None
    if not told.isdecimal() or int(told) < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, not {told!r}.")
    return int(told)


def _seconds(told: str | None) -> float:
    try:
        seconds = float(told) if told else 0.0
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise ConfigError(f"{HOLD_S} must be a number of seconds, not {told!r}.")
    return seconds
