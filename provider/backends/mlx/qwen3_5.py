"""The dense `qwen3_5` trunk over mlx-lm's modules and weights, in a forward of our own.

Weight matmuls run over all positions of the step at once. Attention runs per sequence at that sequence's own length,
the recurrence per row, so a row's numbers cannot depend on its neighbours' lengths. Formulas: Qwen3.5 as
implemented by mlx_lm.models.qwen3_5, with which the tests compare token by token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.gated_delta import normalize_qk
from mlx_lm.models.qwen3_next import Qwen3NextMLP

from provider.backends.mlx.aside import Aside
from provider.backends.mlx.block_cache import BlockCache
from provider.backends.mlx.cpu_layout import lay_out_for_cpu
from provider.backends.mlx.gated_delta import recur
from provider.backends.mlx.gated_steps import in_steps
from provider.backends.mlx.layout import Layout
from provider.backends.mlx.recurrent import Captured, Recurrent, Slots

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
    """Forward passes for prefill (one sequence, T positions) and decode (B sequences, one or a few positions each)."""

    def __init__(self, model: Any) -> None:
        self._model = model.language_model
        self._args = self._model.args
        self.layers = self._model.model.layers
        self._dtype = self._model.model.norm.weight.dtype
        self.aside = Aside()
        if mx.default_device() == mx.Device(mx.cpu):
            lay_out_for_cpu(model, tied_embedding=self._args.tie_word_embeddings)

    @property
    def recurrent_layers(self) -> int:
        return sum(layer.is_linear for layer in self.layers)

    @property
    def kv_bytes_per_token(self) -> int:
        attention = len(self.layers) - self.recurrent_layers
        return 2 * attention * self._args.num_key_value_heads * self._args.head_dim * self._dtype.size

    def kv_bytes_of(self, layer: Any) -> int:
        """Of one attention layer of this model's kind, per token."""
        attention = layer.self_attn
        return 2 * attention.num_key_value_heads * attention.head_dim * self._dtype.size

    @property
    def args(self) -> Any:
        """mlx-lm's, of the model's text part."""
        return self._args

    @property
    def state_bytes(self) -> int:
        return sum(array.nbytes for one in self._fresh_recurrent() for array in (one.conv, one.state))

    def fresh(self) -> Cells:
        attention = [BlockCache() for layer in self.layers if not layer.is_linear]
        return Cells(attention, self._fresh_recurrent())

    def prefill(self, cells: Cells, tokens: Sequence[int]) -> mx.array:
        """Appends `tokens`; their hidden states [T, H] after the final norm."""
        assert cells.recurrent is not None, "a sequence is prefilled before it decodes"
        hidden = self.embed(mx.array([list(tokens)]))
        caches, states = iter(cells.attention), iter(cells.recurrent)
        mask = "causal" if len(tokens) > 1 else None
        for layer in self.layers:
            normed = layer.input_layernorm(hidden)
            if layer.is_linear:
                mixed = _recurrence(layer.linear_attn, normed, next(states), self.aside)
            else:
                mixed = _attend_chunk(layer.self_attn, normed, next(caches), mask, self.aside)
            hidden = feed_forward(layer, hidden + mixed, self.aside)
        return self.normed(hidden[0])

    def decode(self, cells: Sequence[Cells], slots: Slots, tokens: mx.array, layout: Layout) -> mx.array:
        """One or more positions for each sequence, fed `tokens` [R], in the order of the slots' rows
        -> hidden [R, H] after the final norm. Of more than one, `slots` holds every state until `Slots.keep`."""
        hidden = self.embed(tokens[:, None])
        attention = recurrence = 0
        for layer in self.layers:
            normed = layer.input_layernorm(hidden)
            if layer.is_linear:
                held = slots.layer(recurrence)
                recur_rows = _recurrence if layout.longest == 1 else _captured_recurrence(layout)
                mixed = recur_rows(layer.linear_attn, normed, held, self.aside)
                recurrence += 1
            else:
                caches = [one.attention[attention] for one in cells]
                mixed = attend_rows(layer.self_attn, normed, caches, layout, self.aside)
                attention += 1
            hidden = feed_forward(layer, hidden + mixed, self.aside)
        return self.normed(hidden[:, 0])

    def embed(self, tokens: mx.array) -> mx.array:
        """[...] -> [..., H]"""
        return self._model.model.embed_tokens(tokens)

    def normed(self, hidden: mx.array) -> mx.array:
        """The final norm."""
        return self.final_norm(hidden)

    @property
    def final_norm(self) -> Any:
        return self._model.model.norm

    def logits(self, hidden: mx.array) -> mx.array:
        """[N, H] -> [N, V]"""
        if self._args.tie_word_embeddings:
            return self._model.model.embed_tokens.as_linear(hidden)
        return self._model.lm_head(hidden)

    def _fresh_recurrent(self) -> list[Recurrent]:
        mixers = [layer.linear_attn for layer in self.layers if layer.is_linear]
        return [
            Recurrent(
                conv=mx.zeros((1, one.conv_kernel_size - 1, one.conv_dim), dtype=self._dtype),
                state=mx.zeros((1, one.num_v_heads, one.head_v_dim, one.head_k_dim), dtype=mx.float32),
            )
            for one in mixers
        ]


def feed_forward(layer: Any, hidden: mx.array, aside: Aside) -> mx.array:
    normed = layer.post_attention_layernorm(hidden)
    if not isinstance(layer.mlp, Qwen3NextMLP):
        return hidden + layer.mlp(normed)
    up = aside(lambda: layer.mlp.up_proj(normed))
    return hidden + layer.mlp.down_proj(swiglu(layer.mlp.gate_proj(normed), up))


def _recurrence(mixer: Any, x: mx.array, held: Recurrent, aside: Aside) -> mx.array:
    """Gated delta rule over x [N, T, H]; moves `held` (N rows) on by T positions."""
    length = x.shape[1]
    gate, decay, beta = aside(lambda: (mixer.in_proj_z(x), mixer.in_proj_a(x), mixer.in_proj_b(x)))
    window = mx.concatenate([held.conv, mixer.in_proj_qkv(x)], axis=1)
    # A gather, not a slice: mx.contiguous may keep the window's buffer, up to 16 KiB more than the ledger counts.
    held.conv = mx.take(window, mx.arange(length, length + mixer.conv_kernel_size - 1), axis=1)
    q, k, v = convolved(mixer, window)
    if length == 1:
        y, (held.state,) = in_steps(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, held.state)
    else:
        y, held.state = recur(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, held.state)
    return gated(mixer, y, gate)


def _captured_recurrence(layout: Layout) -> Callable[[Any, mx.array, Recurrent, Aside], mx.array]:
    """As _recurrence, over x [R, 1, H]: step by step, each state is kept and `held` stands still."""

    def recurrence(mixer: Any, x: mx.array, held: Recurrent, aside: Aside) -> mx.array:
        gate, decay, beta = aside(lambda: (mixer.in_proj_z(x), mixer.in_proj_a(x), mixer.in_proj_b(x)))
        window = mx.concatenate([held.conv, layout.by_row(mixer.in_proj_qkv(x))], axis=1)
        q, k, v = convolved(mixer, window)
        decay, beta = layout.by_row(decay), layout.by_row(beta)
        y, states = in_steps(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, held.state)
        held.captured = Captured(window, states)
        return gated(mixer, layout.flat(y), gate)

    return recurrence


def convolved(mixer: Any, window: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """[N, k-1 + T, C] -> q, k [N, T, Hk, dk] normalised, v [N, T, Hv, dv]."""
    mixed = nn.silu(mixer.conv1d(window))
    rows, length, _ = mixed.shape
    q, k, v = mx.split(mixed, [mixer.key_dim, 2 * mixer.key_dim], axis=-1)
    q = q.reshape(rows, length, mixer.num_k_heads, mixer.head_k_dim)
    k = k.reshape(rows, length, mixer.num_k_heads, mixer.head_k_dim)
    q, k = normalize_qk(q, k, inv_scale=mixer.head_k_dim**-0.5, eps=QK_EPSILON)
    return q, k, v.reshape(rows, length, mixer.num_v_heads, mixer.head_v_dim)


def gated(mixer: Any, y: mx.array, gate: mx.array) -> mx.array:
    """y [N, T, Hv, dv], gate [N, T, Hv * dv] -> [N, T, H]"""
    rows, length, _ = gate.shape
    return mixer.out_proj(mixer.norm(y, gate.reshape(y.shape)).reshape(rows, length, -1))


def queries_and_gate(attention: Any, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
    """x [N, T, H] -> rotated queries [N, Hq, T, D], gate [N, T, Hq * D]."""
    rows, length, _ = x.shape
    both = attention.q_proj(x).reshape(rows, length, attention.num_attention_heads, -1)
    queries, gate = mx.split(both, 2, axis=-1)
    queries = attention.rope(attention.q_norm(queries).transpose(0, 2, 1, 3), offset=offset)
    return queries, gate.reshape(rows, length, -1)


def keys_and_values(attention: Any, x: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
    """x [N, T, H] -> rotated keys and values [N, Hkv, T, D]."""
    rows, length, _ = x.shape
    keys = attention.k_proj(x).reshape(rows, length, attention.num_key_value_heads, -1)
    values = attention.v_proj(x).reshape(rows, length, attention.num_key_value_heads, -1)
    keys = attention.rope(attention.k_norm(keys).transpose(0, 2, 1, 3), offset=offset)
    return keys, values.transpose(0, 2, 1, 3)


def _attend_chunk(attention: Any, x: mx.array, cache: BlockCache, mask: str | None, aside: Aside) -> mx.array:
    queries, gate = aside(lambda: queries_and_gate(attention, x, cache.offset))
    held = cache.update_and_fetch(*keys_and_values(attention, x, cache.offset))
    out = mx.fast.scaled_dot_product_attention(queries, *held, scale=attention.scale, mask=mask)
    return close_attention(attention, out, gate)


def attend_rows(attention: Any, x: mx.array, caches: Sequence[BlockCache], layout: Layout, aside: Aside) -> mx.array:
    """x [R, 1, H]: the positions of each row, each against that row's own keys at its own length."""
    offsets = position_offsets(caches, layout)
    queries, gate = aside(lambda: queries_and_gate(attention, x, offsets))
    keys, values = keys_and_values(attention, x, offsets)

    def attended(row: int) -> mx.array:
        begin, width = layout.spans[row]
        rows = slice(begin, begin + width)
        held = caches[row].update_and_fetch(in_time(keys[rows]), in_time(values[rows]))
        mask = "causal" if width > 1 else None
        out = mx.fast.scaled_dot_product_attention(in_time(queries[rows]), *held, scale=attention.scale, mask=mask)
        return in_time(out)

    outs = aside.halved(attended, [cache.offset for cache in caches])
    return close_attention(attention, mx.concatenate(outs), gate)


def position_offsets(caches: Sequence[BlockCache], layout: Layout) -> mx.array:
    """[R]: where each of the positions about to be appended stands in its sequence."""
    return mx.array(
        [cache.offset + t for cache, width in zip(caches, layout.widths, strict=True) for t in range(width)]
    )


def in_time(x: mx.array) -> mx.array:
    """[W, heads, 1, D] -> [1, heads, W, D], and back."""
    return x if x.shape[0] == x.shape[2] == 1 else x.swapaxes(0, 2)


def close_attention(attention: Any, out: mx.array, gate: mx.array) -> mx.array:
    rows, _, length, _ = out.shape
    out = out.transpose(0, 2, 1, 3).reshape(rows, length, -1)
    return attention.o_proj(out * mx.sigmoid(gate))
