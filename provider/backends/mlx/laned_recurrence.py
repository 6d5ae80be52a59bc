"""A recurrent layer of the `qwen3_5` trunk in exact mode: its products and norms lane by lane, its convolution and its
states bank by bank, one position at a time."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import precise_swiglu

from provider.backends.mlx.abreast import Abreast
from provider.backends.mlx.device import on_the_cpu
from provider.backends.mlx.gated_steps import in_steps
from provider.backends.mlx.lanes import Crossing
from provider.backends.mlx.products import product_of, side_by_side
from provider.backends.mlx.qwen3_5 import QK_EPSILON
from provider.backends.mlx.recurrent import Captured, Recurrent
from provider.backends.mlx.rms_norm import joined, rms_norm


class LanedRecurrence:
    def __init__(self, mixer: Any) -> None:
        self._mixer = mixer
        narrow = side_by_side(mixer.in_proj_a, mixer.in_proj_b)
        both = [product_of(mixer.in_proj_a), product_of(mixer.in_proj_b)] if narrow is None else [narrow]
        self.copied_bytes = 0 if narrow is None else narrow.weight_bytes
        """Of weights that the model has as well."""
        self._in = [product_of(mixer.in_proj_z), product_of(mixer.in_proj_qkv), *both]
        self._out = product_of(mixer.out_proj)
        self._convolve = _by_taps(mixer.conv1d) if on_the_cpu() else partial(_by_launches, mixer.conv1d)

    def __call__(self, x: mx.array, held: Sequence[Recurrent], crossing: Crossing, abreast: Abreast) -> mx.array:
        """Gated delta rule over x [rows, H]. Every state is kept, and `held` stands still."""
        gate, *told = abreast.products(self._in, x)
        steps = [self._steps(one, *map(pick, told)) for one, pick in zip(held, crossing.to_banks, strict=True)]
        y = crossing.to_lanes(joined(steps))
        gated = precise_swiglu(y, gate.reshape(y.shape), abreast.norm(self._mixer.norm, y))
        return abreast.product(self._out, gated.flatten(1))

    def _steps(self, held: Recurrent, qkv: mx.array, *narrow: mx.array) -> mx.array:
        """One bank, position by position: [size * T, Hv, dv]."""
        mixer, size = self._mixer, held.conv.shape[0]
        qkv, *rest = (one.reshape(size, -1, one.shape[-1]) for one in (qkv, *narrow))
        decay, beta = rest if len(rest) == 2 else mx.split(rest[0], 2, axis=-1)
        window = mx.concatenate([held.conv, qkv], axis=1)
        q, k, v = _normalised(mixer, nn.silu(self._convolve(window, qkv.shape[1])))
        y, states = in_steps(q, k, v, decay, beta, mixer.A_log, mixer.dt_bias, held.state)
        held.captured = Captured(window, states)
        return y.flatten(0, 1)


def _by_launches(conv1d: Any, window: mx.array, positions: int) -> mx.array:
    """window [S, k-1 + T, C] -> [S, T, C], one position in a launch."""
    return joined([conv1d(window[:, t : t + conv1d.weight.shape[1]]) for t in range(positions)], axis=1)


def _by_taps(conv1d: Any) -> Callable[[mx.array, int], mx.array]:
    """As _by_launches, element by element: on a CPU that takes a third of the time for three positions."""
    taps = [conv1d.weight[:, at, 0].astype(mx.float32) for at in range(conv1d.weight.shape[1])]
    mx.eval(taps)

    def convolve(window: mx.array, positions: int) -> mx.array:
        wide = window.astype(mx.float32)
        products = (wide[:, at : at + positions] * tap for at, tap in enumerate(taps))
        return reduce(add, products).astype(window.dtype)

    return convolve


def _normalised(mixer: Any, mixed: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """[S, T, C] -> q, k [S, T, Hk, dk] normalised, v [S, T, Hv, dv]: as qwen3_5.convolved, with one position in a
    launch of the norm, which takes queries and keys together."""
    size, positions, _ = mixed.shape
    scale = mixer.head_k_dim**-0.5
    both, v = mx.split(mixed, [2 * mixer.key_dim], axis=-1)
    both = both.reshape(size, positions, 2 * mixer.num_k_heads, mixer.head_k_dim)
    both = rms_norm(both, None, QK_EPSILON * scale**2, partial(_by_position, positions), axis=1)
    q, k = mx.split(both, 2, axis=2)
    return (scale**2) * q, scale * k, v.reshape(size, positions, mixer.num_v_heads, mixer.head_v_dim)


def _by_position(positions: int, x: mx.array) -> list[mx.array]:
    return [x] if positions == 1 else [*mx.split(x, positions, axis=1)]
