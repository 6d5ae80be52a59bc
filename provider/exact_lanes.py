"""How many rows the lanes of a model have: as an earlier load on this device has chosen, else by measurement. Two loads
may measure otherwise, and on a GPU another number of rows is other bits: what is kept lets a restart give the same.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.device import running_on
from provider.backends.mlx.lane_cost import pass_seconds
from provider.exact.choice import Source, cheapest
from provider.lane_file import Kept, Subject, keep_rows, read_rows

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rows:
    count: int
    source: Source


def choose_rows(backend: MlxBackend, model: str, directory: Path | None, keep: bool = True) -> Rows | None:
    """None where no number of rows is exact. `directory`: where choices are kept; None: nowhere. Without `keep` nothing
    is written there. Leaves the backend without lanes."""
    grid = backend.grid
    if not grid.candidates:
        return None
    subject = Subject(device=running_on(), shapes=backend.shapes, candidates=grid.candidates)
    kept = None if directory is None else read_rows(directory, subject)
    if kept is not None:
        return Rows(kept, "kept")
    if len(subject.candidates) == 1:
        return Rows(subject.candidates[0], "measured")
    seconds = pass_seconds(backend, subject.candidates)
    rows = cheapest(seconds, grid.drafts)
    log.info("exact_lanes %s", " ".join(f"{one}={taken * 1e3:.2f}ms" for one, taken in seconds.items()))
    if directory is not None and keep:
        pass_ms = {str(one): round(taken * 1e3, 3) for one, taken in seconds.items()}
        keep_rows(directory, Kept(subject=subject, lane_rows=rows, model=model, pass_ms=pass_ms))
    return Rows(rows, "measured")
