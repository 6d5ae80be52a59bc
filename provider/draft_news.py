"""What the log is told of one model's drafting, once each time."""

import logging

from provider.generation import Finished
from provider.mtp.policy import Declaration, failed_while_drafting
from provider.pipe import DraftSpec, DraftState, DraftStatus, EngineState

log = logging.getLogger(__name__)

DRAFTABLE_TOKENS = 4
"""A shorter answer may well end before anything could be drafted for it."""


class DraftNews:
    """Owner: a slot."""

    def __init__(self, model_id: str) -> None:
        self._model = model_id
        self._undrafted = False

    def tell(self, drafts: DraftStatus, spec: DraftSpec | None) -> None:
        """A warning where a head that is there, or may be, is not used; no news where there is none."""
        if drafts.active:
            log.info("mtp_active model=%s block_size=%s", self._model, drafts.block_size)
            return
        expected = spec is not None and spec.declaration != Declaration.ABSENT
        level = logging.WARNING if expected else logging.INFO
        log.log(level, "mtp_inactive model=%s reason=%s detail=%r", self._model, drafts.reason, drafts.detail)

    def finished(self, event: Finished, state: DraftState | None) -> None:
        """Of a model that drafts: says so, once in a row, when nothing was drafted for a whole answer."""
        if event.completion_tokens < DRAFTABLE_TOKENS:
            return
        drafted = bool(event.accepted + event.rejected)
        if not drafted and not self._undrafted:
            controller = None if state is None else state.controller
            log.warning(
                "mtp_drafted_nothing model=%s request=%s controller=%s", self._model, event.request_id, controller
            )
        self._undrafted = not drafted


def drafts_after(state: EngineState, drafts: DraftStatus) -> DraftStatus:
    """As the worker's report leaves it: a head that has failed is not drafted with any more."""
    if state.draft_failure is None or not drafts.active:
        return drafts
    off = failed_while_drafting(state.draft_failure)
    return DraftStatus(active=False, reason=off.reason.value, detail=off.detail)
