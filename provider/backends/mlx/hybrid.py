"""Sequences of a qwen3_5 trunk, dense or with experts: keys and values per sequence, recurrent rows in slots."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from provider.backends.mlx.qwen3_5 import Cells, Trunk
from provider.backends.mlx.recurrent import Recurrent, Slots


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

    def decode(self, ids: Sequence[str], tokens: mx.array) -> tuple[Sequence[str], mx.array]:
        fresh = [id for id in ids if self._cells[id].recurrent is not None]
        if self._slots.ids and len(fresh) == len(ids):
            return ids, self._decode_beside(ids, tokens)
        self._seat(fresh, ids)
        ordered = self._slots.ids
        if ordered != ids:
            tokens = tokens[mx.array([ids.index(id) for id in ordered])]
        return ordered, self._run(ordered, self._slots, tokens)

    def arrays(self, ids: Sequence[str]) -> list[mx.array]:
        """Of a sequence that decodes, the slots' arrays say it all: its keys feed the logits that are drawn from."""
        prefilling = [self._cells[id] for id in ids if self._cells[id].recurrent is not None]
        return [*self._slots.arrays(), *(array for one in prefilling for array in one.arrays())]

    def release(self, id: str) -> None:
        self._slots.leave(id)
        self._cells.pop(id, None)

    def _decode_beside(self, ids: Sequence[str], tokens: mx.array) -> mx.array:
        """The first step of sequences that are not among the slots yet, while those in the slots rest."""
        side = Slots(self._trunk.recurrent_layers)
        for id in ids:
            side.join(id, self._own(id))
        logits = self._run(ids, side, tokens)
        for row, id in enumerate(ids):
            self._cells[id].recurrent = side.row(row)
        return logits

    def _seat(self, fresh: Sequence[str], ids: Sequence[str]) -> None:
        """Moves the rows of sequences that decode for the first time into the slots."""
        for id in fresh:
            self._slots.join(id, self._own(id))
            self._cells[id].recurrent = None
        self._slots.compact()
        resting = set(self._slots.ids) - set(ids)
        if resting:
            raise ValueError(f"every decoding sequence takes part in a step; missing: {sorted(resting)}")

    def _run(self, ids: Sequence[str], slots: Slots, tokens: mx.array) -> mx.array:
        return self._trunk.logits(self._trunk.decode([self._cells[id] for id in ids], slots, tokens))

    def _own(self, id: str) -> list[Recurrent]:
        own = self._cells[id].recurrent
        assert own is not None, "a sequence's rows are its own until it is seated"
        return own
