"""One round of drafts against the trunk: which tokens are fed, how each position is drawn, how far the drafts held."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from provider.backends.base import Row, Run
from provider.backends.mlx.sampling import Sampler


class Verification:
    """Of rows some of which carry drafts: `drafts` [N, longest], for those that do. `tokens` [R] to feed, row after
    row, each row's token before its drafts."""

    def __init__(self, rows: Sequence[Row], drafts: mx.array) -> None:
        self._rows = {row.id: row for row in rows}
        self.widths = [1 + row.drafts for row in rows]
        self._longest = drafts.shape[1]
        self._drafts = drafts
        self._places = {row.id: place for place, row in enumerate([row for row in rows if row.drafts])}
        self._told: list[list[int]] | None = None
        self.tokens = self._interleaved(rows)

    def draws(self, ids: Sequence[str], samplers: Mapping[str, Sampler]) -> list[tuple[Sampler, int]]:
        """The sampler and output position of each of the R positions. What looks back sees the drafts before it."""
        draws = []
        for id in ids:
            row, sampler = self._rows[id], samplers[id]
            context = self._drafts_of(id) if sampler.looks_back else []
            draws += [(sampler.after(context[:ahead]), row.position + ahead) for ahead in range(1 + row.drafts)]
        return draws

    def runs(self, ids: Sequence[str], drawn: Sequence[int]) -> dict[str, Run]:
        """`drawn` [R], in the order of `ids`: of each row, up to and with the first that is not the draft fed next."""
        runs, begin = {}, 0
        for id in ids:
            drafts = self._drafts_of(id)
            tokens = drawn[begin : begin + 1 + len(drafts)]
            runs[id] = Run(list(tokens[: 1 + held(drafts, tokens)]), len(drafts))
            begin += 1 + len(drafts)
        return runs

    def _drafts_of(self, id: str) -> list[int]:
        """Waits for the drafts."""
        count = self._rows[id].drafts
        if count == 0:
            return []
        if self._told is None:
            self._told = [*map(list, _nested(self._drafts))]
        return self._told[self._places[id]][:count]

    def _interleaved(self, rows: Sequence[Row]) -> mx.array:
        """One gather from the rows' tokens and all drafts, which may not have been computed yet."""
        pool = mx.concatenate([mx.array([row.token for row in rows]), self._drafts.reshape(-1).astype(mx.int32)])
        order = []
        for number, row in enumerate(rows):
            first = len(rows) + self._places.get(row.id, 0) * self._longest
            order += [number, *range(first, first + row.drafts)]
        return pool[mx.array(order)]


def held(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """How many drafts were right, up to the first that was not."""
    for count, (draft, token) in enumerate(zip(drafts, drawn, strict=False)):
        if draft != token:
            return count
    return len(drafts)


def integers(tokens: mx.array) -> list[int]:
    values: Any = tokens.tolist()  # typed by mlx as any nesting of numbers
    return list(values)


def _nested(tokens: mx.array) -> list[list[int]]:
    values: Any = tokens.tolist()
    return list(values)
