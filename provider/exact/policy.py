"""Whether a model is served in exact mode: a chat's bytes do not depend on who else is there (docs/scheduling.md).

Pure: what the backend can do and what was measured at load come in, a decision goes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, assert_never

Mode = Literal["off", "auto", "on"]
"""`on` refuses to load what cannot be exact; `auto` serves it all the same, and says why it is not."""


class Condition(StrEnum):
    """What is done to one and the same chat when a model is checked; every one must come to the same bits."""

    ALONE = "alone"
    BESIDE = "beside three neighbours"
    STAGGERED = "staggered"
    PARKED = "parked"
    RECOMPUTED = "recomputed"
    DRAFTED = "drafted"


class Code(StrEnum):
    """Why exact mode is unavailable: the closed set that the log, /props and refusals use."""

    BACKEND_UNSUPPORTED = "backend_unsupported"
    EXPERTS_SORTED = "experts_sorted"
    CHECK_DIFFERS = "check_differs"
    CHECK_FAILED = "check_failed"


EXACT_OFF, DRAFTS_OFF = "--exact off", "--mtp-mode off"
"""The settings that would work."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a model on this device.

    `lanes`: whether the backend can decode in lanes; `experts_per_token`: of a mixture, else 0; `lane_rows`: the row
    count chosen by measurement, None where none is possible; `differing`: the conditions that came to other bits;
    `failure`: why the check itself could not be made.
    """

    lanes: bool
    experts_per_token: int = 0
    lane_rows: int | None = None
    differing: Sequence[Condition] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class On:
    lane_rows: int


@dataclass(frozen=True, slots=True)
class Off:
    """Not asked for."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """`reason` is a sentence for people, which ends with the setting that would work; `remedy` is that as a flag."""

    code: Code
    reason: str
    remedy: str = EXACT_OFF


Decision = On | Off | Unavailable


def decide(mode: Mode, found: Found) -> Decision:
    """With `on`, whoever loads refuses what is Unavailable."""
    match mode:
        case "off":
            return Off()
        case "auto" | "on":
            return _judge(found)
        case _:
            assert_never(mode)


def _judge(found: Found) -> On | Unavailable:
    if not found.lanes:
        return Unavailable(Code.BACKEND_UNSUPPORTED, "this backend does not decode in lanes: serve it with exact off")
    if found.failure is not None:
        return Unavailable(Code.CHECK_FAILED, f"the check could not be made ({found.failure}): serve it with exact off")
    if found.lane_rows is None:
        experts = f"each token goes through {found.experts_per_token} experts, and one row is sorted among others"
        return Unavailable(Code.EXPERTS_SORTED, f"{experts}: serve it with exact off")
    if found.differing:
        names = ", ".join(found.differing)
        drafts_alone = [*found.differing] == [Condition.DRAFTED]
        setting, remedy = ("mtp_mode off", DRAFTS_OFF) if drafts_alone else ("exact off", EXACT_OFF)
        told = f"on this device a chat differs from itself alone when it is {names}: serve it with {setting}"
        return Unavailable(Code.CHECK_DIFFERS, told, remedy)
    return On(found.lane_rows)
