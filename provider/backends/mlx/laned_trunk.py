"""The `qwen3_5` trunk's decode pass in exact mode. It computes what Trunk.decode computes; what differs is on how many
rows each launch runs: weight matmuls, norms and the head on a lane's, the recurrence on a bank's, one position at a
time, attention on one query of one sequence. Those numbers never depend on who else decodes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn

from provider.backends.mlx.aside import Aside, Straight, half
from provider.backends.mlx.attending import Attend, Query
from provider.backends.mlx.banks import Bank
from provider.backends.mlx.block_cache import BlockCache
from provider.backends.mlx.gated_steps import in_steps
from provider.backends.mlx.lanes import Crossing, Lanes
from provider.backends.mlx.picks import Pick, Pool
from provider.backends.mlx.qwen3_5 import (
    QK_EPSILON,
    Cells,
    Trunk,
    close_attention,
    feed_forward,
    in_time,
    keys_and_values,
    queries_and_gate,
)
from provider.backends.mlx.recurrent import Captured, Recurrent

Computed = TypeVar("Computed")


class LanedTrunk:
    def __init__(self, trunk: Trunk, attend: Attend) -> None:
        self._trunk = trunk
        self._attend = attend

    def decode(
        self, cells: Sequence[Cells], banks: Sequence[Bank], tokens: mx.array, lanes: Lanes, crossing: Crossing
    ) -> list[mx.array]:
        """`tokens` [sum of widths] in the order of `cells` -> hidden [rows, H] of each lane, after the final norm. The
        banks hold every state until `Bank.keep`."""
        each = EachLane(lanes, self._trunk.aside)
        fed = lanes.tokens(tokens)
        hidden = each(lambda n, aside: self._trunk.embed(fed[n]))
        offsets = lanes.offsets([one.attention[0].offset if one.attention else 0 for one in cells])
        attention = recurrence = 0
        for layer in self._trunk.layers:
            if layer.is_linear:
                held = [bank.layers[recurrence] for bank in banks]
                mixed = _recurrence(layer, hidden, held, crossing, each)
                recurrence += 1
            else:
                caches = [one.attention[attention] for one in cells]
                mixed = self._attention(layer, hidden, caches, lanes, offsets, each)
                attention += 1
            hidden = _fed_forward(layer, hidden, mixed, each)
        return each(lambda n, aside: self._trunk.normed(hidden[n]))

    def _attention(
        self,
        layer: Any,
        xs: Sequence[mx.array],
        caches: Sequence[BlockCache],
        lanes: Lanes,
        offsets: Sequence[mx.array],
        each: "EachLane",
    ) -> list[mx.array]:
        attention = layer.self_attn
        made = each(lambda n, aside: _projected(attention, layer.input_layernorm(xs[n])[:, None], offsets[n], aside))
        asked: list[Query] = []
        rows: list[int | None] = [None] * lanes.rows
        for lane, (queries, _, keys, values), first in zip(lanes.lanes, made, lanes.firsts, strict=True):
            for number in lane.members:
                begin, width = lanes.begins[number] - first, lanes.widths[number]
                own = slice(begin, begin + width)
                held = caches[number].update_and_fetch(in_time(keys[own]), in_time(values[own]))
                for t in range(width):
                    rows[first + begin + t] = len(asked)
                    asked.append(Query(queries[begin + t : begin + t + 1], *held, later=width - 1 - t))
        outs = self._attend(asked, attention.scale)
        spare, own_rows = mx.zeros_like(outs[0]), lanes.split(rows)

        def closed(n: int, aside: Aside) -> mx.array:
            out = mx.concatenate([spare if row is None else outs[row] for row in own_rows[n]])
            return close_attention(attention, out, made[n][1])[:, 0]

        return each(closed)


class EachLane:
    """Lanes do not need one another between two layers' recurrence or attention: of several, half are computed aside;
    of a single or an odd one, what branches off."""

    def __init__(self, lanes: Lanes, aside: Aside) -> None:
        self._aside = aside
        self._count = len(lanes.lanes)
        self._away = {*half(lanes.sizes)} if self._count > 1 else set[int]()
        self._shared = max({*range(self._count)} - self._away) if self._count % 2 else None

    def __call__(self, branch: Callable[[int, Aside], Computed]) -> list[Computed]:
        """branch(n, aside) for every lane n, in order."""
        there = {n: self._aside(partial(branch, n, STRAIGHT)) for n in self._away}
        return [there[n] if n in there else branch(n, self._own(n)) for n in range(self._count)]

    def _own(self, n: int) -> Aside:
        return self._aside if n == self._shared else STRAIGHT


STRAIGHT = Straight()


def _projected(
    attention: Any, x: mx.array, offsets: mx.array, aside: Aside
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Of one lane: queries [rows, Hq, 1, D], gate, keys and values [rows, Hkv, 1, D]."""
    queries, gate = aside(lambda: queries_and_gate(attention, x, offsets))
    return queries, gate, *keys_and_values(attention, x, offsets)


def _fed_forward(layer: Any, xs: Sequence[mx.array], mixed: Sequence[mx.array], each: EachLane) -> list[mx.array]:
    return each(lambda n, aside: feed_forward(layer, xs[n] + mixed[n], aside))


def _recurrence(
    layer: Any, xs: Sequence[mx.array], held: Sequence[Recurrent], crossing: Crossing, each: EachLane
) -> list[mx.array]:
    """Gated delta rule over the lanes `xs`, each [rows, H]. Every state is kept, and `held` stands still."""
    mixer = layer.linear_attn

    def projected(n: int, aside: Aside) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        x = layer.input_layernorm(xs[n])
        gate, decay, beta = aside(lambda: (mixer.in_proj_z(x), mixer.in_proj_a(x), mixer.in_proj_b(x)))
        return gate, mixer.in_proj_qkv(x), decay, beta

    gates, *told = zip(*each(projected), strict=True)
    pools = [Pool(one) for one in told]
    outs = Pool([_steps(mixer, one, pick, pools) for one, pick in zip(held, crossing.to_banks, strict=True)])
    picked = [pick(outs) for pick in crossing.to_lanes]
    return each(lambda n, aside: _gated(mixer, picked[n], gates[n]))


def _steps(mixer: Any, held: Recurrent, pick: Pick, pools: Sequence[Pool]) -> mx.array:
    """One bank, position by position: [size * T, Hv, dv]."""
    size = held.conv.shape[0]
    qkv, decay, beta = (pick(pool) for pool in pools)
    qkv, decay, beta = (one.reshape(size, -1, one.shape[-1]) for one in (qkv, decay, beta))
    window = mx.concatenate([held.conv, qkv], axis=1)
    q, k, v = _convolved(mixer, window, qkv.shape[1])
    y, states = in_steps(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, held.state)
    held.captured = Captured(window, states)
    return y.flatten(0, 1)


def _gated(mixer: Any, y: mx.array, gate: mx.array) -> mx.array:
    """y [rows, Hv, dv], gate [rows, Hv * dv] -> [rows, H]: as qwen3_5.gated."""
    return mixer.out_proj(mixer.norm(y, gate.reshape(y.shape)).flatten(1))


def _convolved(mixer: Any, window: mx.array, positions: int) -> tuple[mx.array, mx.array, mx.array]:
    """[S, k-1 + T, C] -> q, k [S, T, Hk, dk] normalised, v [S, T, Hv, dv]: as qwen3_5.convolved, with one position in a
    launch of the convolution and of the norm, which takes queries and keys together."""
    size, scale = window.shape[0], mixer.head_k_dim**-0.5
    at = range(positions)
    mixed = nn.silu(_joined([mixer.conv1d(window[:, t : t + mixer.conv_kernel_size]) for t in at]))
    both, v = mx.split(mixed, [2 * mixer.key_dim], axis=-1)
    both = both.reshape(size, positions, 2 * mixer.num_k_heads, mixer.head_k_dim)
    both = _joined([mx.fast.rms_norm(both[:, t : t + 1], None, QK_EPSILON * scale**2) for t in at])
    q, k = mx.split(both, 2, axis=2)
    return (scale**2) * q, scale * k, v.reshape(size, positions, mixer.num_v_heads, mixer.head_v_dim)


def _joined(positions: Sequence[mx.array]) -> mx.array:
    return positions[0] if len(positions) == 1 else mx.concatenate([*positions], axis=1)
