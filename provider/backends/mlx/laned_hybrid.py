"""Sequences of a qwen3_5 trunk in exact mode: keys and values per sequence, recurrent rows in banks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import mlx.core as mx

from provider.backends.base import Row
from provider.backends.mlx.banks import Banks
from provider.backends.mlx.forward import Pass
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.ingredients import Ingredients
from provider.backends.mlx.laned_trunk import LanedTrunk
from provider.backends.mlx.lanes import Crossing, Lanes
from provider.backends.mlx.qwen3_5 import Trunk


class LanedHybrid(Hybrid):
    """Implements provider.backends.mlx.forward.Forward."""

    def __init__(self, trunk: Trunk, ingredients: Ingredients) -> None:
        super().__init__(trunk)
        self._banks = self._seats = Banks(ingredients.bank_rows)
        self._packing = ingredients.packing
        self._laned = LanedTrunk(trunk, ingredients.attend)

    @property
    def copied_bytes(self) -> int:
        return self._laned.copied_bytes

    def fit(self, rows: Sequence[Row]) -> Sequence[Row]:
        widths = self._packing.fit([1 + row.drafts for row in rows])
        return [replace(row, drafts=width - 1) for row, width in zip(rows, widths, strict=True)]

    def decode(self, ids: Sequence[str], tokens: mx.array, widths: Sequence[int]) -> list[Pass]:
        """In the order of their seats, so that lanes and banks lie on one another as far as can be."""
        for id in ids:
            self._sit_down(id)
        seats = self._banks.seats
        order = sorted(range(len(ids)), key=lambda i: seats[ids[i]])
        if order != [*range(len(ids))]:
            tokens = tokens[mx.array(_moved(order, widths))]
            ids, widths = [ids[i] for i in order], [widths[i] for i in order]
        lanes = Lanes(self._packing.pack(widths), widths)
        crossing = Crossing(lanes, [seats[id] for id in ids], len(self._banks.banks), self._banks.size)
        hidden = self._laned.decode([self._cells[id] for id in ids], self._banks.banks, tokens, lanes, crossing)
        if lanes.longest == 1:
            self._keep(dict.fromkeys(ids, 1))
        return [
            Pass([ids[i] for i in lane.members], [widths[i] for i in lane.members], self.trunk.logits(one), one)
            for lane, one in zip(lanes.lanes, hidden, strict=True)
        ]

    def keep(self, done: Sequence[Pass], lengths: Mapping[str, int]) -> None:
        self._keep(lengths)
        for one in done:
            for id, width in zip(one.ids, one.widths, strict=True):
                for cache in self._cells[id].attention:
                    cache.roll_back(cache.offset - width + lengths[id])

    def _keep(self, lengths: Mapping[str, int]) -> None:
        for bank in self._banks.banks:
            bank.keep(lengths)

    def _sit_down(self, id: str) -> None:
        own = self._cells[id].recurrent
        if own is not None:
            self._banks.join(id, own)
            self._cells[id].recurrent = None


def _moved(order: Sequence[int], widths: Sequence[int]) -> list[int]:
    """Where the positions of the sequences in their new order lie in the old one."""
    begins = [sum(widths[:i]) for i in range(len(widths))]
    return [begins[i] + t for i in order for t in range(widths[i])]
