"""Keys and values of one sequence in one layer, in whole blocks and in the order of time.

Stands in for mlx-lm's KVCache and RotatingKVCache in its model classes. Theirs grow from wherever a chunk happened to
end, so that a sequence may hold up to a block more than the ledger counts, and a rotating one sums a step's scores in
the order of its ring, so that the same position rounds differently in a prefill and in a decode step.
"""

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from provider.backends.mlx.forward import Image

KV_BLOCK_TOKENS = KVCache.step


class BlockCache:
    """Of the last `window` positions, or of all.

    Never holds more than `offset` positions rounded up to a block; beyond a window, at most that window, the last
    chunk and two blocks.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._start = 0  # the position of the first slot

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends [1, H, T, D]; what the first of them may look at, and all after it."""
        first = self.offset - self._visible
        self._make_room(first, keys, values)
        assert self.keys is not None
        assert self.values is not None
        begin = self.offset - self._start
        end = begin + keys.shape[2]
        self.keys[..., begin:end, :] = keys
        self.values[..., begin:end, :] = values
        self.offset += keys.shape[2]
        seen = slice(first - self._start, end)
        return self.keys[..., seen, :], self.values[..., seen, :]

    def roll_back(self, offset: int) -> None:
        """Forgets all positions from `offset` on, and the blocks that the ledger does not count for a sequence whose
        next position is `offset`. Without a window only: one may have dropped what it would look at again."""
        assert self.window is None
        assert offset <= self.offset
        self.offset = offset
        slots = _round_up(offset + 1)
        if self.keys is not None and self.values is not None and slots < self.keys.shape[2]:
            kept = slice(0, offset)
            self.keys = _moved(self.keys, kept, self.keys, slots)
            self.values = _moved(self.values, kept, self.values, slots)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | str | None:
        """For `N` positions about to be appended; named and typed as mlx-lm calls it."""
        if N == 1:
            return None
        window = self.window or window_size
        if return_array or (window is not None and self._visible + N > window):
            return create_causal_mask(N, self._visible, window_size=window)
        return "causal"

    @property
    def marks(self) -> tuple[int, int]:
        """With `arrays`, all there is to it."""
        return (self.offset, self._start)

    def take_up(self, marks: tuple[int, int], keys: mx.array, values: mx.array) -> None:
        """Becomes what another was."""
        self.offset, self._start = marks
        self.keys, self.values = keys, values

    @property
    def arrays(self) -> list[mx.array]:
        return [one for one in (self.keys, self.values) if one is not None]

    @property
    def _visible(self) -> int:
        """How many held positions the next one looks back on."""
        return self.offset if self.window is None else min(self.offset, self.window - 1)

    def _make_room(self, first: int, keys: mx.array, values: mx.array) -> None:
        """Grows, and drops what lies before position `first`, when the slots are used up."""
        total = self.offset + keys.shape[2]
        if self.keys is not None and total - self._start <= self.keys.shape[2]:
            return
        # A block beyond what is needed, so that a window is not moved at every step; never beyond the ledger's count.
        slots = min(_round_up(total), _round_up(total - first) + KV_BLOCK_TOKENS)
        kept = slice(first - self._start, self.offset - self._start)
        self.keys = _moved(self.keys, kept, keys, slots)
        self.values = _moved(self.values, kept, values, slots)
        self._start = first


def cache_images(caches: Iterable[BlockCache]) -> Image:
    """Of one sequence; `take_up_images` is the inverse."""
    image = Image({}, [])
    for number, cache in enumerate(caches):
        image.marks.append(cache.marks)
        if cache.keys is not None and cache.values is not None:
            image.arrays.update({f"{number}.keys": cache.keys, f"{number}.values": cache.values})
    return image


def take_up_images(caches: Iterable[BlockCache], image: Image) -> None:
    for number, (cache, marks) in enumerate(zip(caches, image.marks, strict=True)):
        if f"{number}.keys" in image.arrays:
            cache.take_up(marks, image.arrays[f"{number}.keys"], image.arrays[f"{number}.values"])


def block_caches(model: Any) -> list[BlockCache]:
    """One per layer, of the kinds mlx-lm would make. Raises TypeError for a kind that is not attention."""
    return [_stand_in(cache) for cache in make_prompt_cache(model)]


def _stand_in(cache: Any) -> BlockCache:
    if type(cache) is KVCache:
        return BlockCache()
    if type(cache) is RotatingKVCache and cache.keep == 0:
        return BlockCache(cache.max_size)
    raise TypeError(f"a cache of type {type(cache).__name__} is not served")


def _moved(held: mx.array | None, kept: slice, like: mx.array, slots: int) -> mx.array:
    """The kept positions at the front of `slots` new ones."""
    rows, heads, _, dim = like.shape
    if held is None or kept.start == kept.stop:
        return mx.zeros((rows, heads, slots, dim), like.dtype)
    spare = mx.zeros((rows, heads, slots - (kept.stop - kept.start), dim), like.dtype)
    return mx.concatenate([held[..., kept, :], spare], axis=2)


def _round_up(positions: int) -> int:
    return -(-positions // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS
