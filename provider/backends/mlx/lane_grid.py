"""On how many rows a model can decode in lanes."""

from dataclasses import dataclass
from typing import Any

from mlx_lm.models.switch_layers import SwitchLinear

LANE_ROWS = (1, 2, 4, 8, 16)
SORTED_PAIRS = 64
"""From so many (token, expert) pairs in a launch on, mlx-lm sorts them by expert (mlx_lm.models.switch_layers): which
rows a kernel then computes together depends on what the other rows' experts are."""


@dataclass(frozen=True, slots=True)
class LaneGrid:
    """`shares`: whether a pass takes rows of several sequences; `experts_per_token`: of a mixture, else 0; `drafts`:
    the most that the head in its own files guesses, 0 without one. Whether that drafts now, or another does, makes no
    other lanes: they are bits of the chat."""

    shares: bool
    experts_per_token: int
    drafts: int

    @property
    def candidates(self) -> list[int]:
        """The row counts that can be exact; none where even one row's experts are sorted. For a model that drafts,
        those in which a sequence has room with all its drafts, or else the largest."""
        possible = [rows for rows in LANE_ROWS if (self.shares or rows == 1) and self._unsorted(rows)]
        roomy = [rows for rows in possible if rows > self.drafts]
        return roomy or possible[-1:]

    def _unsorted(self, rows: int) -> bool:
        return rows * self.experts_per_token < SORTED_PAIRS


def experts_per_token(model: Any) -> int:
    """The most of any layer; 0 without experts."""
    if not any(isinstance(module, SwitchLinear) or hasattr(module, "num_experts") for module in model.modules()):
        return 0
    counts = [getattr(module, name, 0) for module in model.modules() for name in ("top_k", "num_experts_per_tok")]
    return max(counts)
