"""RMS norms in launches of a fixed size.

MLX's CPU build composes `mx.fast.rms_norm` of nearly twenty operations, each of which takes longer to launch than to
compute, and exact mode needs one for every lane and position. The same numbers come of a few operations, of which only
the sum has to be launched for each by itself.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from provider.backends.mlx.device import on_the_cpu

Apart = Callable[[mx.array], Sequence[mx.array]]


def rms_norm(x: mx.array, weight: mx.array | None, eps: float, apart: Apart, axis: int = 0) -> mx.array:
    """mx.fast.rms_norm, bit for bit, of each of the parts into which `apart` takes an array along `axis`."""
    if not on_the_cpu():
        return joined([mx.fast.rms_norm(one, weight, eps) for one in apart(x)], axis)
    wide = x.astype(mx.float32)
    sums = joined([one.sum(axis=-1, keepdims=True) for one in apart(mx.square(wide))], axis)
    normed = (wide * mx.rsqrt(sums * (1.0 / x.shape[-1]) + eps)).astype(x.dtype)
    return normed if weight is None else normed * weight


def joined(parts: Sequence[mx.array], axis: int = 0) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate([*parts], axis=axis)
