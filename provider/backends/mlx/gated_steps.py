"""The gated delta rule position by position, keeping the state after each: for decoding and verifying.

The arithmetic is that of mlx-lm's stepping form, operation for operation, so that a position gives the same bits
whichever of the two computes it. On the CPU, where an operation costs more to launch than to compute, what does not
depend on the state is computed once for all positions.
"""

import mlx.core as mx
from mlx_lm.models.gated_delta import compute_g, gated_delta_update


def in_steps(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    a_log: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, list[mx.array]]:
    """As provider.backends.mlx.gated_delta.recur, with the state after every position."""
    if mx.default_device() != mx.Device(mx.cpu):
        return _in_launches(q, k, v, a, b, a_log, dt_bias, state)
    decay, beta = compute_g(a_log, a, dt_bias)[..., None, None], mx.sigmoid(b)[..., None]
    repeats = v.shape[2] // q.shape[2]
    if repeats > 1:
        q, k = mx.repeat(q, repeats, axis=2), mx.repeat(k, repeats, axis=2)
    q, k = q[..., None, :], k[..., None, :]
    ys, states = [], []
    for q_t, k_t, v_t, decay_t, beta_t in zip(*map(_by_position, (q, k, v, decay, beta)), strict=True):
        state = state * decay_t
        recalled = (state * k_t).sum(axis=-1)
        update = (v_t - recalled) * beta_t
        state = state + k_t * update[..., None]
        ys.append((state * q_t).sum(axis=-1).astype(q.dtype))
        states.append(state)
    return mx.stack(ys, axis=1), states


def _by_position(x: mx.array) -> list[mx.array]:
    """[B, T, ...] -> T times [B, ...]"""
    return [one.squeeze(1) for one in mx.split(x, x.shape[1], axis=1)]


def _in_launches(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    a_log: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, list[mx.array]]:
    """One launch of mlx-lm's kernel for each position: it gives the last state only."""
    ys, states = [], []
    for t in range(q.shape[1]):
        at = slice(t, t + 1)
        y, state = gated_delta_update(q[:, at], k[:, at], v[:, at], a[:, at], b[:, at], a_log, dt_bias, state)
        ys.append(y)
        states.append(state)
    return mx.concatenate(ys, axis=1), states
