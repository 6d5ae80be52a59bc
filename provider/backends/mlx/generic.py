"""Sequences of any served family whose layers are all attention, through mlx-lm's own model class."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from provider.backends.base import Row
from provider.backends.mlx.block_cache import BlockCache, block_caches, cache_images, take_up_images
from provider.backends.mlx.cpu_layout import lay_out_for_cpu
from provider.backends.mlx.forward import Image, Pass
from provider.backends.mlx.row_attention import Rows, attend_by_row


class Generic:
    """Implements provider.backends.mlx.forward.Forward."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._caches: dict[str, list[BlockCache]] = {}
        self.by_row = attend_by_row(model)
        if mx.default_device() == mx.Device(mx.cpu):
            lay_out_for_cpu(model, tied_embedding="lm_head" not in model)
        self.state_bytes = 0
        self.kv_bytes_per_token = self._measured_kv_bytes()

    def open(self, id: str) -> None:
        self._caches[id] = block_caches(self._model)

    def append(self, id: str, tokens: Sequence[int]) -> None:
        self._run(tokens, self._caches[id])

    def logits_after(self, id: str, tokens: Sequence[int]) -> tuple[mx.array, None]:
        """The last position goes by itself: a model class computes the logits of all it is given."""
        caches = self._caches[id]
        if len(tokens) > 1:
            self._run(tokens[:-1], caches)
        return self._run(tokens[-1:], caches)[:, -1], None

    def fit(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    def decode(self, ids: Sequence[str], tokens: mx.array, widths: Sequence[int]) -> list[Pass]:
        assert max(widths) == 1, "nothing drafts for these families"
        caches = [self._caches[id] for id in ids]
        if self.by_row:
            layers = [Rows(layer) for layer in zip(*caches, strict=True)]
            logits = self._model(tokens[:, None], cache=layers)
        else:
            alone = [self._model(tokens[row : row + 1, None], cache=held) for row, held in enumerate(caches)]
            logits = mx.concatenate(alone)
        return [Pass(ids, widths, logits[:, -1], None)]

    def keep(self, done: Sequence[Pass], lengths: Mapping[str, int]) -> None:
        assert max(lengths.values()) == 1, "a pass has one position of each"

    def arrays(self, ids: Sequence[str]) -> list[mx.array]:
        return [array for id in ids for cache in self._caches[id] for array in cache.arrays]

    def park(self, id: str) -> Image:
        return cache_images(self._caches.pop(id))

    def restore(self, id: str, image: Image) -> None:
        self.open(id)
        take_up_images(self._caches[id], image)

    def release(self, id: str) -> None:
        self._caches.pop(id, None)

    def _run(self, tokens: Sequence[int], caches: list[BlockCache]) -> mx.array:
        """[1, T, V]"""
        return self._model(mx.array([list(tokens)]), cache=caches)

    def _measured_kv_bytes(self) -> int:
        """From the shapes and dtypes that one position leads to; they are known without computing it.

        Layers with a window count like the others: exact up to the window, and above what they hold beyond.
        """
        caches = block_caches(self._model)
        self._run([0], caches)
        held = [array for cache in caches for array in cache.arrays]
        return sum(array.nbytes // array.shape[2] for array in held)
