"""A worker's exact mode: switched on once the model is loaded, measured and checked, or the reason why not."""

import logging
from pathlib import Path

from provider.backends.base import Backend
from provider.errors import ExactUnavailable
from provider.exact.choice import cheapest
from provider.exact.policy import Found, Mode, Off, On, Unavailable, decide
from provider.pipe import ExactReport

log = logging.getLogger(__name__)


def attach_exact(backend: Backend, directory: Path, mode: Mode) -> ExactReport:
    """After the head, which is checked with it. Raises ExactUnavailable under `on` for what cannot be guaranteed."""
    match decide(mode, Found(lanes=False) if mode == "off" else _found(backend)):
        case Off():
            return ExactReport()
        case On(rows):
            log.info("exact_on lane_rows=%d", rows)
            return ExactReport(state="on", lane_rows=rows)
        case Unavailable(code, reason):
            log.info("exact_unavailable code=%s reason=%r", code, reason)
            if mode == "on":
                raise ExactUnavailable(f"{directory}: exact mode is on, and cannot be guaranteed: {reason}.")
            return ExactReport(state="unavailable", reason=reason, code=code.value)


def _found(backend: Backend) -> Found:
    """Leaves a backend in lanes that can be exact, and any other as it was."""
    if not hasattr(backend, "decode_in_lanes"):
        return Found(lanes=False)
    from provider.backends.mlx.backend import MlxBackend
    from provider.backends.mlx.lane_cost import lanes_of, pass_seconds
    from provider.exact_check import check, differing, short_question

    assert isinstance(backend, MlxBackend)
    grid = backend.grid
    candidates = grid.candidates
    if not candidates:
        return Found(lanes=True, experts_per_token=grid.experts_per_token)
    rows = candidates[0]
    try:
        if len(candidates) > 1:
            seconds = pass_seconds(backend, candidates)
            rows = cheapest(seconds)
            log.info("exact_lanes %s", " ".join(f"{one}={taken * 1e3:.2f}ms" for one, taken in seconds.items()))
        backend.decode_in_lanes(lanes_of(backend, rows))
        different = differing(check(backend, short_question(backend.facts.vocab_size)))
    except Exception as error:  # whatever it is: not a reason to lose the model under `auto`
        log.exception("exact_check_failed")
        backend.decode_in_lanes(None)
        return Found(lanes=True, lane_rows=rows, failure=f"{type(error).__name__}: {error}")
    if different:
        backend.decode_in_lanes(None)
    backend.clear_cache()
    return Found(lanes=True, lane_rows=rows, differing=different)
