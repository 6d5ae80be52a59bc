"""The caches that stand in for mlx-lm's: a position sees what it sees there, and no more is held than counted."""

from random import Random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from provider.backends.mlx.block_cache import KV_BLOCK_TOKENS, BlockCache, block_caches


def chunks_of(seed: int) -> list[int]:
    """Prefill chunks, then single positions, past several blocks."""
    random = Random(seed)
    return [random.choice([1, 2, 17, 100, 255, 256, 257, 300]) for _ in range(4)] + [1] * random.choice([10, 400])


def positions(start: int, count: int) -> mx.array:
    """[1, 2, count, 4] keys that say which position they are."""
    return mx.broadcast_to(mx.arange(start, start + count)[None, None, :, None], (1, 2, count, 4)).astype(mx.float32)


def seen_by_each(keys: mx.array, mask: Any, count: int) -> list[list[int]]:
    """For each of the last `count` positions, those it attends to, in order of time."""
    held = keys[0, 0, :, 0].astype(mx.int32).tolist()
    newest = held[-count:] if isinstance(mask, str) or mask is not None else [max(held)]
    if mask is None or isinstance(mask, str):
        return [sorted(one for one in held if one <= last) for last in newest]
    return [sorted(one for one, shown in zip(held, row, strict=True) if shown) for row in mask.tolist()]


@pytest.mark.parametrize("window", [None, 1, 24, 256, 300])
@pytest.mark.parametrize("seed", range(4))
def test_every_position_sees_what_it_sees_in_mlx_lms_cache(window: int | None, seed: int) -> None:
    ours = BlockCache(window)
    theirs = KVCache() if window is None else RotatingKVCache(window)
    for count in chunks_of(seed):
        like, new = mx.zeros((1, count, 4)), positions(ours.offset, count)
        masks = [create_attention_mask(like, one, window_size=window) for one in (ours, theirs)]
        (our_keys, our_values), (their_keys, _) = ours.update_and_fetch(new, new), theirs.update_and_fetch(new, new)

        assert mx.array_equal(our_keys, our_values)
        assert our_keys[0, 0, :, 0].tolist() == sorted(our_keys[0, 0, :, 0].tolist())
        assert seen_by_each(our_keys, masks[0], count) == seen_by_each(their_keys, masks[1], count)
        assert ours.offset == theirs.offset


@pytest.mark.parametrize("window", [None, 1, 24, 256, 300])
@pytest.mark.parametrize("seed", range(8))
def test_no_more_is_held_than_the_positions_rounded_up_to_a_block(window: int | None, seed: int) -> None:
    cache, longest = BlockCache(window), 0
    for count in chunks_of(seed):
        longest = max(longest, count)
        cache.update_and_fetch(positions(cache.offset, count), positions(cache.offset, count))
        assert cache.keys is not None
        slots = cache.keys.shape[2]
        assert slots <= -(-cache.offset // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS
        assert window is None or slots <= window + longest + 2 * KV_BLOCK_TOKENS


def test_a_cache_that_is_not_attention_is_refused() -> None:
    class Recurrent:
        def make_cache(self) -> list[ArraysCache]:
            return [ArraysCache(2)]

    with pytest.raises(TypeError, match="ArraysCache is not served"):
        block_caches(Recurrent())
