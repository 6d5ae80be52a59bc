"""Sequences of a qwen3_5 trunk, dense or with experts: keys and values per sequence, recurrent rows in slots."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from provider.backends.base import Row
from provider.backends.mlx.qwen3_5 import Cells, Trunk
from provider.backends.mlx.recurrent import Slots


class Hybrid:
    """Implements provider.backends.mlx.forward.Forward."""

    def __init__(self, model: Any) -> None:
        self._trunk = Trunk(model)
        self._slots = Slots(self._trunk.recurrent_layers)
        self._cells: dict[str, Cells] = {}

    @property
    def kv_bytes_per_token(self) -> int:
        return self._trunk.kv_bytes_per_token

    @property
    def state_bytes(self) -> int:
        return self._trunk.state_bytes

    def open(self, id: str) -> None:
        self._cells[id] = self._trunk.fresh()

    def append(self, id: str, tokens: Sequence[int]) -> None:
        self._trunk.prefill(self._cells[id], tokens)

    def logits_after(self, id: str, tokens: Sequence[int]) -> mx.array:
        return self._trunk.logits(self._trunk.prefill(self._cells[id], tokens))

    def decode(self, rows: Sequence[Row]) -> tuple[Sequence[Row], mx.array]:
        by_id = {row.id: row for row in rows}
        self._seat(by_id)
        ordered = [by_id[id] for id in self._slots.ids]
        cells = [self._cells[row.id] for row in ordered]
        hidden = self._trunk.decode(cells, self._slots, [row.token for row in ordered])
        return ordered, self._trunk.logits(hidden)

    def arrays(self, ids: Sequence[str]) -> list[mx.array]:
        """Of a sequence that decodes, the slots' arrays say it all: its keys feed the logits that are drawn from."""
        prefilling = [self._cells[id] for id in ids if self._cells[id].recurrent is not None]
        return [*self._slots.arrays(), *(array for one in prefilling for array in one.arrays())]

    def release(self, id: str) -> None:
        self._slots.leave(id)
        self._cells.pop(id, None)

    def _seat(self, by_id: dict[str, Row]) -> None:
        """Moves the rows of sequences that decode for the first time into the slots."""
        for id in by_id:
            cells = self._cells[id]
            if cells.recurrent is not None:
                self._slots.join(id, cells.recurrent)
                cells.recurrent = None
        self._slots.compact()
        resting = set(self._slots.ids) - by_id.keys()
        if resting:
            raise ValueError(f"every decoding sequence takes part in a step; missing: {sorted(resting)}")
