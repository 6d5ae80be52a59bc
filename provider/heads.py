"""The prediction head of a worker's model: chosen, inspected, loaded and tried before the model is advertised.

Whatever goes wrong here turns drafting off, with a reason that users see, and nothing else.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from provider.backends.base import Backend
from provider.errors import HeadInvalid
from provider.mtp.artifact import reinspect
from provider.mtp.head import ExternalHead, HeadArtifact, InlineHead
from provider.mtp.policy import Declaration, Off, Reason, failed_while_drafting
from provider.mtp.probe import Probe
from provider.mtp.smoke import LEAST_ACCEPTANCE, smoke_acceptance, smoke_prompts
from provider.mtp.verdict import judge
from provider.pipe import DraftSpec, DraftStatus

log = logging.getLogger(__name__)

Encode = Callable[[str], list[int]]
Head = InlineHead | ExternalHead


class Drafts(Backend, Protocol):
    """A backend that can draft with a head."""

    def adopt(self, artifact: HeadArtifact) -> None: ...

    def dismiss(self) -> None: ...


def choose_head(directory: Path, spec: DraftSpec | None) -> Head | Off:
    """Before the model is loaded. The probe is the one its provider made: it is not made a second time."""
    if spec is None:
        return Off(Reason.ENGINE_INACTIVE, "nothing was said about drafting")
    probed = Probe(Declaration(spec.declaration), spec.model_type, "")
    path = None if spec.drafter_path is None else Path(spec.drafter_path)
    choice = judge(directory, probed, killed=spec.killed, mode=spec.mode, drafter_path=path).choice
    if isinstance(choice, ExternalHead) and not spec.room:
        return Off(
            Reason.ASSISTANT_MEMORY_UNAVAILABLE, f"{choice.directory}: there is no memory for it beside its model"
        )
    return choice


def attach_head(backend: Drafts, head: Head | Off, encode: Encode) -> DraftStatus:
    """After the model is loaded: what was inspected is inspected again, loaded, and must be right often enough."""
    off = head if isinstance(head, Off) else _attach(backend, head, encode)
    if off is not None:
        return inactive(off)
    assert not isinstance(head, Off)
    log.info("mtp_active head=%s block_size=%d", head.directory, head.block_size)
    return DraftStatus(active=True, block_size=head.block_size)


def inactive(off: Off) -> DraftStatus:
    log.info("mtp_inactive reason=%s detail=%r", off.reason, off.detail)
    return DraftStatus(active=False, reason=off.reason.value, detail=off.detail)


def _attach(backend: Drafts, head: Head, encode: Encode) -> Off | None:
    try:
        backend.adopt(reinspect(head) if isinstance(head, InlineHead) else head)
        acceptance = smoke_acceptance(backend, smoke_prompts(encode))
    except HeadInvalid as error:
        return Off(error.reason, str(error))
    except Exception as error:  # a head that fails never fails its model
        log.exception("mtp_load_failed head=%s", head.directory)
        return _unusable(backend, head, str(error))
    if backend.draft_failure is not None:
        return _unusable(backend, head, backend.draft_failure)
    log.info("mtp_self_check acceptance=%.2f", acceptance)
    if acceptance >= LEAST_ACCEPTANCE:
        return None
    backend.dismiss()
    found = f"{acceptance:.0%} of the drafts in the self-check are right, and {LEAST_ACCEPTANCE:.0%} are needed"
    return Off(Reason.ACCEPTANCE_TOO_LOW, f"{head.directory}: {found}")


def _unusable(backend: Drafts, head: Head, why: str) -> Off:
    backend.dismiss()
    return Off(Reason.ASSISTANT_LOAD_FAILED, f"{head.directory}: the head cannot be used: {why}")


def still_active(backend: Backend, drafts: DraftStatus) -> DraftStatus:
    """What is said of a head that was chosen, now that more has been computed with it, and lanes may have been."""
    if not drafts.active:
        return drafts
    if backend.draft_failure is not None:
        return inactive(failed_while_drafting(backend.draft_failure))
    if backend.facts.lane_rows == 1:
        return inactive(
            Off(Reason.ENGINE_INACTIVE, "exact mode decodes in lanes of 1 row, which have no room for drafts")
        )
    return drafts
