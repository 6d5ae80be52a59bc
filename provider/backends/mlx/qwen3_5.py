"""The dense `qwen3_5` trunk over mlx-lm's modules and weights, in a forward of our own.

Weight matmuls run over all rows of the step at once. Attention runs per sequence at that sequence's own length,
the recurrence per row, so a row's numbers cannot depend on its neighbours' lengths. Formulas: Qwen3.5 as
implemented by mlx_lm.models.qwen3_5, with which the tests compare token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import normalize_qk

from provider.backends.mlx.block_cache import BlockCache
from provider.backends.mlx.cpu_layout import lay_out_for_cpu
from provider.backends.mlx.gated_delta import recur
from provider.backends.mlx.recurrent import Recurrent, Slots

QK_EPSILON = 1e-6
"""The l2norm epsilon of the reference (transformers' Qwen3.5, mlx-lm's GatedDeltaNet)."""


@dataclass(slots=True)
class Cells:
    """What one sequence holds: keys and values per attention layer, and, until it decodes, its recurrent rows.

    `recurrent` is None while the rows live in the Slots.
    """

    attention: list[BlockCache]
    recurrent: list[Recurrent] | None

    def arrays(self) -> list[mx.array]:
        held = [array for cache in self.attention for array in cache.arrays]
        return held + [array for one in self.recurrent or [] for array in (one.conv, one.state)]


class Trunk:
    """Forward passes for prefill (one sequence, T positions) and decode (B sequences, one position each)."""

    def __init__(self, model: Any) -> None:
        self._model = model.language_model
        self._args = self._model.args
        self._layers = self._model.model.layers
        self._dtype = self._model.model.norm.weight.dtype
        if mx.default_device() == mx.Device(mx.cpu):
            lay_out_for_cpu(model, tied_embedding=self._args.tie_word_embeddings)

    @property
    def recurrent_layers(self) -> int:
        return sum(layer.is_linear for layer in self._layers)

    @property
    def kv_bytes_per_token(self) -> int:
        attention = len(self._layers) - self.recurrent_layers
        return 2 * attention * self._args.num_key_value_heads * self._args.head_dim * self._dtype.size

    @property
    def state_bytes(self) -> int:
        return sum(array.nbytes for one in self._fresh_recurrent() for array in (one.conv, one.state))

    def fresh(self) -> Cells:
        attention = [BlockCache() for layer in self._layers if not layer.is_linear]
        return Cells(attention, self._fresh_recurrent())

    def prefill(self, cells: Cells, tokens: Sequence[int]) -> mx.array:
        """Appends `tokens`; the hidden state [1, H] of the last, after the final norm."""
        assert cells.recurrent is not None, "a sequence is prefilled before it decodes"
        hidden = self._model.model.embed_tokens(mx.array([list(tokens)]))
        caches, states = iter(cells.attention), iter(cells.recurrent)
        mask = "causal" if len(tokens) > 1 else None
        for layer in self._layers:
            normed = layer.input_layernorm(hidden)
            if layer.is_linear:
                mixed = _recurrence(layer.linear_attn, normed, next(states))
            else:
                mixed = _attend_chunk(layer.self_attn, normed, next(caches), mask)
            hidden = _feed_forward(layer, hidden + mixed)
        return self._model.model.norm(hidden[:, -1])

    def decode(self, cells: Sequence[Cells], slots: Slots, tokens: mx.array) -> mx.array:
        """One position for each sequence, fed `tokens` [B], in the order of the slots' rows
        -> hidden [B, H] after the final norm."""
        hidden = self._model.model.embed_tokens(tokens[:, None])
        attention = recurrence = 0
        for layer in self._layers:
            normed = layer.input_layernorm(hidden)
            if layer.is_linear:
                mixed = _recurrence(layer.linear_attn, normed, slots.layer(recurrence))
                recurrence += 1
            else:
                mixed = _attend_rows(layer.self_attn, normed, [one.attention[attention] for one in cells])
                attention += 1
            hidden = _feed_forward(layer, hidden + mixed)
        return self._model.model.norm(hidden[:, 0])

    def logits(self, hidden: mx.array) -> mx.array:
        """[N, H] -> [N, V]"""
        if self._args.tie_word_embeddings:
            return self._model.model.embed_tokens.as_linear(hidden)
        return self._model.lm_head(hidden)

    def _fresh_recurrent(self) -> list[Recurrent]:
        mixers = [layer.linear_attn for layer in self._layers if layer.is_linear]
        return [
            Recurrent(
                conv=mx.zeros((1, one.conv_kernel_size - 1, one.conv_dim), dtype=self._dtype),
                state=mx.zeros((1, one.num_v_heads, one.head_v_dim, one.head_k_dim), dtype=mx.float32),
            )
            for one in mixers
        ]


def _feed_forward(layer: Any, hidden: mx.array) -> mx.array:
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def _recurrence(mixer: Any, x: mx.array, held: Recurrent) -> mx.array:
    """Gated delta rule over x [N, T, H]; moves `held` (N rows) on by T positions."""
    rows, length, _ = x.shape
    window = mx.concatenate([held.conv, mixer.in_proj_qkv(x)], axis=1)
    # A gather, not a slice: mx.contiguous may keep the window's buffer, up to 16 KiB more than the ledger counts.
    held.conv = mx.take(window, mx.arange(length, length + mixer.conv_kernel_size - 1), axis=1)
    mixed = nn.silu(mixer.conv1d(window))
    q, k, v = mx.split(mixed, [mixer.key_dim, 2 * mixer.key_dim], axis=-1)
    q = q.reshape(rows, length, mixer.num_k_heads, mixer.head_k_dim)
    k = k.reshape(rows, length, mixer.num_k_heads, mixer.head_k_dim)
    v = v.reshape(rows, length, mixer.num_v_heads, mixer.head_v_dim)
    q, k = normalize_qk(q, k, inv_scale=mixer.head_k_dim**-0.5, eps=QK_EPSILON)
    decay, beta = mixer.in_proj_a(x), mixer.in_proj_b(x)
    y, held.state = recur(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, held.state)
    gate = mixer.in_proj_z(x).reshape(rows, length, mixer.num_v_heads, mixer.head_v_dim)
    return mixer.out_proj(mixer.norm(y, gate).reshape(rows, length, -1))


def _project(attention: Any, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """x [N, T, H] -> rotated queries [N, Hq, T, D], rotated keys and values [N, Hkv, T, D], gate [N, T, Hq * D]."""
    rows, length, _ = x.shape
    both = attention.q_proj(x).reshape(rows, length, attention.num_attention_heads, -1)
    queries, gate = mx.split(both, 2, axis=-1)
    keys = attention.k_proj(x).reshape(rows, length, attention.num_key_value_heads, -1)
    values = attention.v_proj(x).reshape(rows, length, attention.num_key_value_heads, -1)
    queries = attention.rope(attention.q_norm(queries).transpose(0, 2, 1, 3), offset=offset)
    keys = attention.rope(attention.k_norm(keys).transpose(0, 2, 1, 3), offset=offset)
    return queries, keys, values.transpose(0, 2, 1, 3), gate.reshape(rows, length, -1)


def _attend_chunk(attention: Any, x: mx.array, cache: BlockCache, mask: str | None) -> mx.array:
    queries, keys, values, gate = _project(attention, x, cache.offset)
    keys, values = cache.update_and_fetch(keys, values)
    out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=attention.scale, mask=mask)
    return _close(attention, out, gate)


def _attend_rows(attention: Any, x: mx.array, caches: Sequence[BlockCache]) -> mx.array:
    """One position per row, each against its own keys at its own length."""
    offsets = mx.array([cache.offset for cache in caches])
    queries, keys, values, gate = _project(attention, x, offsets)
    outs = []
    for i, cache in enumerate(caches):
        held = cache.update_and_fetch(keys[i : i + 1], values[i : i + 1])
        outs.append(mx.fast.scaled_dot_product_attention(queries[i : i + 1], *held, scale=attention.scale))
    return _close(attention, mx.concatenate(outs), gate)


def _close(attention: Any, out: mx.array, gate: mx.array) -> mx.array:
    rows, _, length, _ = out.shape
    out = out.transpose(0, 2, 1, 3).reshape(rows, length, -1)
    return attention.o_proj(out * mx.sigmoid(gate))
