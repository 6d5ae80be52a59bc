"""The `qwen3_5` trunk's decode pass in exact mode. It computes what Trunk.decode computes; what differs is on how many
rows each launch runs: weight matmuls, norms and the head on a lane's, the recurrence on a bank's, one position at a
time, attention on one query of one sequence. Those numbers never depend on who else decodes.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from provider.backends.mlx.aside import Aside
from provider.backends.mlx.attending import Attend, Query
from provider.backends.mlx.banks import Bank
from provider.backends.mlx.block_cache import BlockCache
from provider.backends.mlx.gated_steps import in_steps
from provider.backends.mlx.lanes import Crossing, Lanes
from provider.backends.mlx.picks import Pick, Pool
from provider.backends.mlx.qwen3_5 import (
    Cells,
    Trunk,
    close_attention,
    convolved,
    feed_forward,
    gated,
    in_time,
    keys_and_values,
    queries_and_gate,
)
from provider.backends.mlx.recurrent import Captured, Recurrent


class LanedTrunk:
    def __init__(self, trunk: Trunk, attend: Attend) -> None:
        self._trunk = trunk
        self._attend = attend

    def decode(
        self, cells: Sequence[Cells], banks: Sequence[Bank], tokens: mx.array, lanes: Lanes, crossing: Crossing
    ) -> list[mx.array]:
        """`tokens` [sum of widths] in the order of `cells` -> hidden [rows, H] of each lane, after the final norm. The
        banks hold every state until `Bank.keep`."""
        hidden = [self._trunk.embed(one[:, None]) for one in lanes.tokens(tokens)]
        offsets = lanes.offsets([one.attention[0].offset if one.attention else 0 for one in cells])
        attention = recurrence = 0
        for layer in self._trunk.layers:
            normed = [layer.input_layernorm(one) for one in hidden]
            if layer.is_linear:
                held = [bank.layers[recurrence] for bank in banks]
                mixed = _recurrence(layer.linear_attn, normed, held, crossing, self._trunk.aside)
                recurrence += 1
            else:
                caches = [one.attention[attention] for one in cells]
                mixed = self._attention(layer.self_attn, normed, caches, lanes, offsets)
                attention += 1
            hidden = [
                feed_forward(layer, one + more, self._trunk.aside) for one, more in zip(hidden, mixed, strict=True)
            ]
        return [self._trunk.normed(one[:, 0]) for one in hidden]

    def _attention(
        self,
        attention: Any,
        xs: Sequence[mx.array],
        caches: Sequence[BlockCache],
        lanes: Lanes,
        offsets: list[mx.array],
    ) -> list[mx.array]:
        made = [_queries_keys_values(attention, x, at, self._trunk.aside) for x, at in zip(xs, offsets, strict=True)]
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
        spare = mx.zeros_like(outs[0])
        return [
            close_attention(attention, mx.concatenate([spare if n is None else outs[n] for n in own]), gate)
            for own, (_, gate, _, _) in zip(lanes.split(rows), made, strict=True)
        ]


def _queries_keys_values(
    attention: Any, x: mx.array, offsets: mx.array, aside: Aside
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Of one lane: queries [rows, Hq, 1, D], gate, keys and values [rows, Hkv, 1, D]."""
    queries, gate = aside(lambda: queries_and_gate(attention, x, offsets))
    return queries, gate, *keys_and_values(attention, x, offsets)


def _recurrence(
    mixer: Any, xs: Sequence[mx.array], held: Sequence[Recurrent], crossing: Crossing, aside: Aside
) -> list[mx.array]:
    """Gated delta rule over the lanes `xs`, each [rows, 1, H]. A single position moves `held` on; of more, every state
    is kept and `held` stands still."""
    gates, told = [], []
    for x in xs:
        gate, decay, beta = _beside(mixer, x, aside)
        gates.append(gate)
        told.append((mixer.in_proj_qkv(x), decay, beta))
    pools = [Pool(one) for one in zip(*told, strict=True)]
    ys = []
    for one, picks in zip(held, crossing.to_banks, strict=True):
        ys += _steps(mixer, one, picks, pools)
    outs = Pool(ys)
    return [gated(mixer, pick(outs), gate) for pick, gate in zip(crossing.to_lanes, gates, strict=True)]


def _beside(mixer: Any, x: mx.array, aside: Aside) -> tuple[mx.array, mx.array, mx.array]:
    return aside(lambda: (mixer.in_proj_z(x), mixer.in_proj_a(x), mixer.in_proj_b(x)))


def _steps(mixer: Any, held: Recurrent, picks: Sequence[Pick], pools: Sequence[Pool]) -> list[mx.array]:
    """One bank, position by position: its outputs [size, 1, Hv, dv] at each."""
    lookback = mixer.conv_kernel_size - 1
    fed, state, ys, states = [held.conv], held.state, [], []
    for pick in picks:
        qkv, decay, beta = (pick(pool) for pool in pools)
        fed.append(qkv)
        window = mx.concatenate(fed, axis=1)
        q, k, v = convolved(mixer, window[:, -lookback - 1 :])
        y, (state,) = in_steps(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, state)
        ys.append(y)
        states.append(state)
    held.captured = Captured(window, states)
    return ys
