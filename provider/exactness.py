"""A worker's exact mode: switched on once the model is loaded, measured and checked, or the reason why not."""

import logging
from pathlib import Path

from provider.backends.base import Backend
from provider.config import BackendName
from provider.errors import ExactUnavailable
from provider.exact.choice import Source
from provider.exact.policy import Code, Found, Mode, Off, On, Unavailable, decide
from provider.models.resolve import model_id_of
from provider.pipe import ExactReport

log = logging.getLogger(__name__)


def attach_exact(backend: Backend, directory: Path, mode: Mode, lanes_in: Path | None = None) -> ExactReport:
    """After the head, which is checked with it. `lanes_in`: where choices of rows are kept; None: nowhere.
    Raises ExactUnavailable under `on` for what cannot be guaranteed."""
    found, source = (Found(lanes=False), None) if mode == "off" else _found(backend, directory, lanes_in)
    match decide(mode, found):
        case Off():
            return ExactReport()
        case On(rows):
            log.info("exact_on lane_rows=%d from=%s", rows, source)
            return ExactReport(state="on", lane_rows=rows, lane_rows_from=source)
        case Unavailable(code, reason, remedy):
            log.info("exact_unavailable code=%s reason=%r", code, reason)
            if mode == "on":
                raise _refused(directory, code, reason, remedy)
            return ExactReport(state="unavailable", reason=reason, code=code.value, remedy=remedy)


def foreseen(backend: BackendName, directory: Path, mode: Mode) -> ExactUnavailable | None:
    """What a load would raise, as far as that is known without one."""
    if backend == "mlx" or mode != "on":
        return None
    match decide(mode, Found(lanes=False)):
        case Unavailable(code, reason, remedy):
            return _refused(directory, code, reason, remedy)
        case _:
            return None


def _refused(directory: Path, code: Code, reason: str, remedy: str) -> ExactUnavailable:
    told = f"{directory}: exact mode is on, and cannot be guaranteed: {reason}."
    return ExactUnavailable(told, code.value, remedy)


def _found(backend: Backend, directory: Path, lanes_in: Path | None) -> tuple[Found, Source | None]:
    """Leaves a backend in lanes that can be exact, and any other as it was. Besides, where its rows come from."""
    if not hasattr(backend, "decode_in_lanes"):
        return Found(lanes=False), None
    from provider.backends.mlx.backend import MlxBackend
    from provider.backends.mlx.lane_cost import lanes_of
    from provider.exact_check import check, differing, short_question
    from provider.exact_lanes import choose_rows

    assert isinstance(backend, MlxBackend)
    rows: int | None = None
    try:
        chosen = choose_rows(backend, model_id_of(directory), lanes_in)
        if chosen is None:
            return Found(lanes=True, experts_per_token=backend.grid.experts_per_token), None
        rows = chosen.count
        backend.decode_in_lanes(lanes_of(backend, rows))
        different = differing(check(backend, short_question(backend.facts.vocab_size)))
    except Exception as error:  # whatever it is: not a reason to lose the model under `auto`
        log.exception("exact_check_failed")
        backend.decode_in_lanes(None)
        return Found(lanes=True, lane_rows=rows, failure=f"{type(error).__name__}: {error}"), None
    if different:
        backend.decode_in_lanes(None)
    backend.clear_cache()
    return Found(lanes=True, lane_rows=rows, differing=different), chosen.source
