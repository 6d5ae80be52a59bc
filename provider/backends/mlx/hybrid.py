"""Sequences of a qwen3_5 trunk, dense or with experts: keys and values per sequence, recurrent rows in slots."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from provider.backends.base import Row
from provider.backends.mlx.block_cache import cache_images, take_up_images
from provider.backends.mlx.forward import Image, Pass
from provider.backends.mlx.layout import Layout
from provider.backends.mlx.qwen3_5 import Cells, Trunk
from provider.backends.mlx.recurrent import Recurrent, Slots


class Seats(Protocol):
    """Where the recurrent rows of sequences that decode are held together."""

    def take(self, id: str) -> list[Recurrent]:
        """A sequence leaves, with rows of its own."""
        ...

    def leave(self, id: str) -> None:
        """Unknown ids are ignored."""
        ...

    def arrays(self) -> list[mx.array]: ...


class Hybrid:
    """Implements provider.backends.mlx.forward.Forward."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk
        self._slots = Slots(self.trunk.recurrent_layers)
        self._seats: Seats = self._slots
        self._side: Slots | None = None  # of a pass beside the slots, until it is kept
        self._cells: dict[str, Cells] = {}

    @property
    def kv_bytes_per_token(self) -> int:
        return self.trunk.kv_bytes_per_token

    @property
    def state_bytes(self) -> int:
        return self.trunk.state_bytes

    def open(self, id: str) -> None:
        self._cells[id] = self.trunk.fresh()

    def append(self, id: str, tokens: Sequence[int]) -> mx.array:
        return self.trunk.prefill(self._cells[id], tokens)

    def logits_after(self, id: str, tokens: Sequence[int]) -> tuple[mx.array, mx.array]:
        hidden = self.append(id, tokens)
        return self.trunk.logits(hidden[-1:]), hidden

    def fit(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    def decode(self, ids: Sequence[str], tokens: mx.array, widths: Sequence[int]) -> list[Pass]:
        layout, self._side = Layout(widths), None
        fresh = [id for id in ids if self._cells[id].recurrent is not None]
        if self._slots.ids and len(fresh) == len(ids):
            return [self._decode_beside(ids, tokens, layout)]
        self._seat(fresh, ids)
        ordered = self._slots.ids
        if ordered != ids:
            order = [ids.index(id) for id in ordered]
            tokens = tokens[mx.array([layout.begins[i] + t for i in order for t in range(widths[i])])]
            layout = Layout([widths[i] for i in order])
        return [self._run(ordered, self._slots, tokens, layout)]

    def keep(self, done: Sequence[Pass], lengths: Mapping[str, int]) -> None:
        (whole,) = done
        (self._slots if self._side is None else self._side).keep([lengths[id] for id in whole.ids])
        for id, width in zip(whole.ids, whole.widths, strict=True):
            for cache in self._cells[id].attention:
                cache.roll_back(cache.offset - width + lengths[id])
        if self._side is not None:
            self._settle(whole.ids, self._side)

    def arrays(self, ids: Sequence[str]) -> list[mx.array]:
        """Of a sequence that decodes, the slots' arrays say it all: its keys feed the logits that are drawn from."""
        prefilling = [self._cells[id] for id in ids if self._cells[id].recurrent is not None]
        return [*self._seats.arrays(), *(array for one in prefilling for array in one.arrays())]

    def park(self, id: str) -> Image:
        cells = self._cells.pop(id)
        own = self._seats.take(id) if cells.recurrent is None else cells.recurrent
        image = cache_images(cells.attention)
        for number, one in enumerate(own):
            image.arrays.update({f"{number}.conv": one.conv, f"{number}.state": one.state})
        return image

    def restore(self, id: str, image: Image) -> None:
        cells = self._cells[id] = self.trunk.fresh()
        take_up_images(cells.attention, image)
        cells.recurrent = [
            Recurrent(image.arrays[f"{number}.conv"], image.arrays[f"{number}.state"])
            for number in range(self.trunk.recurrent_layers)
        ]

    def release(self, id: str) -> None:
        self._seats.leave(id)
        self._cells.pop(id, None)

    def _decode_beside(self, ids: Sequence[str], tokens: mx.array, layout: Layout) -> Pass:
        """The first step of sequences that are not among the slots yet, while those in the slots rest."""
        side = Slots(self.trunk.recurrent_layers)
        for id in ids:
            side.join(id, self._own(id))
        done = self._run(ids, side, tokens, layout)
        if layout.longest == 1:
            self._settle(ids, side)
        else:
            self._side = side
        return done

    def _settle(self, ids: Sequence[str], side: Slots) -> None:
        for row, id in enumerate(ids):
            self._cells[id].recurrent = side.row(row)
        self._side = None

    def _seat(self, fresh: Sequence[str], ids: Sequence[str]) -> None:
        """Moves the rows of sequences that decode for the first time, or again, into the slots, and those of
        sequences that stay away from this step out of them."""
        for id in set(self._slots.ids) - set(ids):
            self._cells[id].recurrent = self._slots.take(id)
        for id in fresh:
            self._slots.join(id, self._own(id))
            self._cells[id].recurrent = None
        self._slots.compact()

    def _run(self, ids: Sequence[str], slots: Slots, tokens: mx.array, layout: Layout) -> Pass:
        hidden = self.trunk.decode([self._cells[id] for id in ids], slots, tokens, layout)
        return Pass(ids, layout.widths, self.trunk.logits(hidden), hidden)

    def _own(self, id: str) -> list[Recurrent]:
        own = self._cells[id].recurrent
        assert own is not None, "a sequence's rows are its own until it is seated"
        return own
