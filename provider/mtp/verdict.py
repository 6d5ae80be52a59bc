"""The whole decision for one model, before anything is loaded: probe, policy, then the inspection of what was chosen.

What comes later can only turn drafting off: memory, loading, and the short self-check at load (docs/mtp.md).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from provider.errors import HeadInvalid
from provider.mtp.artifact import inspect_inline_head
from provider.mtp.external import inspect_external_head
from provider.mtp.head import ExternalHead, InlineHead
from provider.mtp.policy import Decision, Declaration, Embedded, External, Mode, Off, Reason, decide
from provider.mtp.probe import Probe


@dataclass(frozen=True, slots=True)
class Verdict:
    """`choice`: the sound head to draft with, or why there is none."""

    declaration: Declaration
    choice: InlineHead | ExternalHead | Off

    @property
    def active(self) -> bool:
        return not isinstance(self.choice, Off)

    @property
    def reason(self) -> Reason | None:
        return self.choice.reason if isinstance(self.choice, Off) else None

    @property
    def detail(self) -> str | None:
        return self.choice.detail if isinstance(self.choice, Off) else None


def judge(
    directory: Path, found: Probe, *, killed: bool, mode: Mode = "auto", drafter_path: Path | None = None
) -> Verdict:
    """`found`: the probe of `directory`, made once by whoever asks. Never raises for what the files hold."""
    decision = decide(
        killed=killed,
        mode=mode,
        model_type=found.model_type,
        declaration=found.declaration,
        drafter_path=drafter_path,
    )
    return Verdict(found.declaration, inspect(directory, decision))


def fix(reason: Reason) -> str:
    """What an operator can do about it."""
    match reason:
        case Reason.KILL_SWITCH_DISABLED:
            return "Unset DARKBLOOM_MTP, and start again."
        case Reason.CONFIG_DISABLED:
            return "Set mtp_mode to auto, and serve a checkpoint that embeds a head, or to on with mtp_drafter_path."
        case Reason.TARGET_UNSUPPORTED:
            return "Nothing: heads are drafted with for qwen3_5 and qwen3_5_moe alone, and the model is served plainly."
        case Reason.INLINE_ARTIFACT_INVALID:
            return "Download or convert the checkpoint again; docs/mtp.md says what an embedded head must be."
        case Reason.LOCAL_ARTIFACT_INVALID:
            return "Correct mtp_drafter_path, or convert that head again; docs/mtp.md says what it must be."
        case Reason.ASSISTANT_TARGET_INCOMPATIBLE:
            return "Name a head that was made for this model in mtp_drafter_path."
        case Reason.ASSISTANT_MEMORY_UNAVAILABLE:
            return "Free memory, lower memory_reserve_gb, or serve with a smaller pool; the model is served plainly."
        case Reason.ASSISTANT_LOAD_FAILED:
            return "See the worker's log for what failed; convert the head again."
        case Reason.ACCEPTANCE_TOO_LOW:
            return "Convert the head again: one that is rarely right is usually of another model or stored another way."
        case Reason.ENGINE_INACTIVE:
            return "Nothing if the backend never drafts. If its head has failed, see the log and load the model again."
        case _:
            assert_never(reason)


def inspect(directory: Path, decision: Decision) -> InlineHead | ExternalHead | Off:
    """The head that the decision names, or Off with what is wrong with it."""
    try:
        match decision:
            case Off():
                return decision
            case Embedded():
                return inspect_inline_head(directory)
            case External(path):
                return inspect_external_head(path, directory)
            case _:
                assert_never(decision)
    except HeadInvalid as error:
        return Off(error.reason, str(error))
