"""Whether a model drafts, and with which head: kill switch -> mode -> artifact -> plain decoding (docs/mtp.md).

Pure: what the files say (provider.mtp.probe) and what the configuration says come in, a decision goes out. Whether
the chosen head is sound is for the inspection that follows; a head that fails it never falls through to another.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, assert_never

Mode = Literal["auto", "on", "off"]

FAMILIES = frozenset({"qwen3_5", "qwen3_5_moe"})
"""Those whose head is drafted with."""
KILLED = frozenset({"0", "false", "no", "off"})
"""The values of DARKBLOOM_MTP that switch drafting off, whatever else is configured."""


class Declaration(StrEnum):
    """Whether a checkpoint says that it brings a prediction head."""

    DECLARED = "declared"
    ABSENT = "absent"
    UNDETERMINABLE = "undeterminable"

    @property
    def may_declare(self) -> bool:
        return self is not Declaration.ABSENT


class Reason(StrEnum):
    """Why a model does not draft: the closed set that the log, /props, the heartbeat and `models inspect` use."""

    KILL_SWITCH_DISABLED = "kill_switch_disabled"
    CONFIG_DISABLED = "config_disabled"
    TARGET_UNSUPPORTED = "target_unsupported"
    INLINE_ARTIFACT_INVALID = "inline_artifact_invalid"
    LOCAL_ARTIFACT_INVALID = "local_artifact_invalid"
    ASSISTANT_TARGET_INCOMPATIBLE = "assistant_target_incompatible"
    ASSISTANT_MEMORY_UNAVAILABLE = "assistant_memory_unavailable"
    ASSISTANT_LOAD_FAILED = "assistant_load_failed"
    ACCEPTANCE_TOO_LOW = "acceptance_too_low"
    ENGINE_INACTIVE = "engine_inactive"


@dataclass(frozen=True, slots=True)
class Embedded:
    """Draft with the head in the checkpoint itself, once it has been inspected."""


@dataclass(frozen=True, slots=True)
class External:
    """Draft with the head in this directory, once it has been inspected."""

    path: Path


@dataclass(frozen=True, slots=True)
class Off:
    """Decode plainly. `detail` is a sentence for people."""

    reason: Reason
    detail: str


Decision = Embedded | External | Off


def decide(
    *, killed: bool, mode: Mode, model_type: str | None, declaration: Declaration, drafter_path: Path | None = None
) -> Decision:
    """`model_type` as config.json writes it, None where that cannot be read: then it may be of the family."""
    if killed:
        return Off(Reason.KILL_SWITCH_DISABLED, "DARKBLOOM_MTP switches drafting off")
    match mode:
        case "off":
            return Off(Reason.CONFIG_DISABLED, "mtp_mode is off")
        case "auto" if not declaration.may_declare:
            return Off(Reason.CONFIG_DISABLED, "the checkpoint embeds no head, and mtp_mode auto looks for no other")
        case "auto" | "on" if not in_family(model_type):
            return Off(Reason.TARGET_UNSUPPORTED, f"no head is drafted with for model_type {model_type!r}")
        case "auto":
            return Embedded()
        case "on":
            return Embedded() if declaration.may_declare else _elsewhere(drafter_path)
        case _:
            assert_never(mode)


def family(model_type: str) -> str:
    """Trimmed, lower-cased, and without `_text`."""
    return model_type.strip().lower().removesuffix("_text")


def in_family(model_type: str | None) -> bool:
    return model_type is None or family(model_type) in FAMILIES


def is_killed(value: str | None) -> bool:
    """`value`: of the environment variable DARKBLOOM_MTP."""
    return value is not None and value.strip().lower() in KILLED


def failed_while_drafting(failure: str) -> Off:
    """Of a model that did draft. `failure`: what its head raised."""
    return Off(Reason.ENGINE_INACTIVE, f"the head failed while it drafted ({failure}): load the model again to draft")


def _elsewhere(drafter_path: Path | None) -> Decision:
    if drafter_path is None:
        return Off(Reason.CONFIG_DISABLED, "the checkpoint embeds no head, and mtp_drafter_path names no other")
    return External(drafter_path)
