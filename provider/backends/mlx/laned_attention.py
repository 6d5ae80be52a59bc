"""An attention layer of the `qwen3_5` trunk in exact mode: its products and norms lane by lane, its attention query by
query."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from provider.backends.mlx.abreast import Abreast
from provider.backends.mlx.attending import Attend, Query
from provider.backends.mlx.block_cache import BlockCache
from provider.backends.mlx.lanes import Lanes
from provider.backends.mlx.products import product_of


class LanedAttention:
    def __init__(self, mixer: Any, attend: Attend) -> None:
        self._mixer = mixer
        self._attend = attend
        self._in = [product_of(one) for one in (mixer.q_proj, mixer.k_proj, mixer.v_proj)]
        self._out = product_of(mixer.o_proj)

    def __call__(
        self, x: mx.array, caches: Sequence[BlockCache], lanes: Lanes, offsets: mx.array, abreast: Abreast
    ) -> mx.array:
        """Over x [rows, H], whose positions stand at `offsets` [rows] of their sequences."""
        mixer, rows = self._mixer, lanes.rows
        heads, key_heads = mixer.num_attention_heads, mixer.num_key_value_heads
        both, keys, values = abreast.products(self._in, x)
        queries, gate = mx.split(both.reshape(rows, heads, -1), 2, axis=-1)
        queries = abreast.norm(mixer.q_norm, queries)
        keys = abreast.norm(mixer.k_norm, keys.reshape(rows, key_heads, -1))
        turned = mixer.rope(mx.concatenate([queries, keys], axis=1)[:, :, None], offset=offsets)
        queries, keys = mx.split(turned, [heads], axis=1)
        keys, values = keys.swapaxes(0, 2), values.reshape(rows, key_heads, 1, -1).swapaxes(0, 2)
        asked: list[Query] = []
        for cache, begin, width in zip(caches, lanes.begins, lanes.widths, strict=True):
            end = begin + width
            held = cache.update_and_fetch(keys[..., begin:end, :], values[..., begin:end, :])
            asked += [Query(row, *held, later=end - 1 - row) for row in range(begin, end)]
        outs = self._attend(queries.reshape(rows, key_heads, heads // key_heads, -1), asked, mixer.scale)
        out = _in_rows(outs, asked, rows).reshape(rows, -1)
        return abreast.product(self._out, out * mx.sigmoid(gate.reshape(rows, -1)))


def _in_rows(outs: Sequence[mx.array], asked: Sequence[Query], rows: int) -> mx.array:
    """[rows, ...], zero where nobody asked."""
    placed = [mx.zeros_like(outs[0])] * rows if len(asked) < rows else [*outs]
    for one, out in zip(asked, outs, strict=True):
        placed[one.row] = out
    return mx.concatenate(placed)
