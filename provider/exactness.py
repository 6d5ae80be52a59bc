"""A worker's exact mode: switched on once the model is loaded, or the reason why not."""

import logging
from pathlib import Path

from provider.errors import ExactUnavailable
from provider.exact.policy import Found, Mode, Off, On, Unavailable, decide
from provider.pipe import ExactReport

log = logging.getLogger(__name__)


def attach_exact(directory: Path, mode: Mode) -> ExactReport:
    """Raises ExactUnavailable under `on` for what cannot be guaranteed."""
    match decide(mode, Found(lanes=False)):
        case Off():
            return ExactReport()
        case On(lane_rows):
            log.info("exact_on lane_rows=%d", lane_rows)
            return ExactReport(state="on", lane_rows=lane_rows)
        case Unavailable(code, reason):
            log.info("exact_unavailable code=%s reason=%r", code, reason)
            if mode == "on":
                raise ExactUnavailable(f"{directory}: exact mode is on, and cannot be guaranteed: {reason}.")
            return ExactReport(state="unavailable", reason=reason, code=code.value)
