"""The gated delta rule over many positions without a Metal kernel: in chunks, not token by token.

Per head, with state S [dv, dk], decay g_t and write strength b_t:  S_t = g_t S_{t-1} + u_t k_t^T,
u_t = b_t (v_t - g_t S_{t-1} k_t),  y_t = S_t q_t.  Within a chunk that begins at S_0, with D[t, i] = sum of log g over
(i, t] and G_t = D[t, start]:

    (I + A) U = b (V - exp(G) K S_0^T),   A[t, i] = b_t exp(D[t, i]) (k_t . k_i) for i < t
    Y = exp(G) Q S_0^T + M U,             M[t, i] = exp(D[t, i]) (q_t . k_i)     for i <= t
    S = exp(G_end) S_0 + U^T (exp(D[end, i]) K)

(Gated DeltaNet, Yang et al. 2024.) Everything but the S_0 terms is computed for all chunks at once; A is nilpotent, so
the inverse is a product of four factors. Decays are sums over their own span, never differences of running sums: a
hard gate before the span would otherwise cost its small sums their digits.

The chunk form is written in what MLX and NumPy share. On the CPU NumPy computes it: its BLAS is many times as fast as
the reference BLAS of MLX's CPU build (docs/decisions/0009-recurrence-in-numpy.md).
"""

import os
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.gated_delta import gated_delta_update

CHUNK = 16
"""Positions in a chunk; measured here: 16 beats 32 and 64 at every geometry tried. The scheduler cuts on this grid."""
BLOCK = 8 * CHUNK
"""Positions that NumPy computes at a time, so that its working arrays, which no counter of MLX sees, stay small."""
FADED = -40.0
"""A decay below exp(FADED) = 4e-18 counts as none. Float32 cannot tell, and products of such decays are subnormal
numbers, with which an Intel CPU multiplies at half its speed."""

# On CUDA, MLX multiplies float32 in TF32, of 10 bits, unless told otherwise before its first product: 3e-4 off in the
# recurrence, which has to be float32 at any dtype of the weights.
os.environ.setdefault("MLX_ENABLE_TF32", "0")


def recur(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    a_log: mx.array,
    dt_bias: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """q, k [B, T, Hk, dk] normalised, v [B, T, Hv, dv], a, b [B, T, Hv], state [B, Hv, dv, dk] float32
    -> y [B, T, Hv, dv] in q's dtype, the state after T positions.

    Whole chunks from the first position on, the rest step by step. On Metal, mlx-lm's kernel takes all of it.
    On the CPU only float32 goes in chunks: in bfloat16 their rounding (3e-7) flips last bits worth 0.4 %, which
    is enough to part from the reference where two tokens are nearly tied.
    """
    whole = q.shape[1] // CHUNK * CHUNK if _chunks_pay(q.dtype) else 0
    if whole == 0:
        return gated_delta_update(q, k, v, a, b, a_log, dt_bias, state)
    decay = log_decay(a_log, a[:, :whole], dt_bias)
    strength = mx.sigmoid(b[:, :whole])
    chunks = in_numpy if _on_the_cpu() else in_chunks
    y, state = chunks(q[:, :whole], k[:, :whole], v[:, :whole], decay, strength, state)
    if whole == q.shape[1]:
        return y, state
    rest = [one[:, whole:] for one in (q, k, v, a, b)]
    y_rest, state = gated_delta_update(*rest, a_log, dt_bias, state)
    return mx.concatenate([y, y_rest], axis=1), state


def _chunks_pay(dtype: mx.Dtype) -> bool:
    if mx.metal.is_available():
        return False
    return dtype == mx.float32 or not _on_the_cpu()


def _on_the_cpu() -> bool:
    return bool(mx.default_device() == mx.Device(mx.cpu))


def log_decay(a_log: mx.array, a: mx.array, dt_bias: mx.array) -> mx.array:
    """log g [B, T, Hv] float32, from the same expression as mlx-lm's compute_g."""
    return -mx.exp(a_log.astype(mx.float32)) * nn.softplus(a + dt_bias).astype(mx.float32)


def in_numpy(*told: mx.array) -> tuple[mx.array, mx.array]:
    """As `in_chunks`, for float32; waits for its arguments and computes at once."""
    mx.eval(told)
    *along, state = (np.asarray(one) for one in told)
    ys = []
    for begin in range(0, along[0].shape[1], BLOCK):
        q, k, v, log_g, beta = (one[:, begin : begin + BLOCK] for one in along)
        y, state = in_chunks(q, k, v, log_g, beta, state, np)
        ys.append(y)
    return mx.array(np.concatenate(ys, axis=1)), mx.array(state)


def in_chunks(q: Any, k: Any, v: Any, log_g: Any, beta: Any, state: Any, xp: Any = mx) -> tuple[Any, Any]:
    """As `recur`, for T a multiple of CHUNK, with log g and beta [B, T, Hv] given; all of them arrays of `xp`."""
    dtype, (batch, length, heads, width) = q.dtype, v.shape
    repeats = heads // q.shape[2]
    q, k, v, log_g, beta = (_chunked(one, xp) for one in (q, k, v, log_g[..., None], beta[..., None]))
    products = (k @ _transposed(k), q @ _transposed(k))
    q, k, k_k, q_k = (xp.repeat(one, repeats, axis=1) for one in (q, k, *products))
    spans = _spans(log_g, xp)
    decays = xp.tril(_decay(spans, xp))
    since_start = _decay(xp.cumsum(log_g, axis=-2), xp)
    inverse = xp.where(spans > FADED, _inverse(beta * xp.tril(decays, -1) * k_k, xp), 0)
    values = inverse @ (beta * v)
    # What S_0 adds to U and to Y. Two matrices: a product of [16, 128] and [128, 128] is the largest that OpenBLAS
    # leaves to one thread, and its threads spin for seconds where other processes hold the cores.
    to_update, to_output = inverse @ (beta * since_start * k), since_start * q
    mixing = decays * q_k
    carried_t = _transposed(decays[..., -1, :, None] * k)
    fading = since_start[..., -1:, :]
    state_t = _laid_out(_transposed(state), xp)
    ys = []
    for n in range(length // CHUNK):
        update = values[:, :, n] - to_update[:, :, n] @ state_t
        ys.append(to_output[:, :, n] @ state_t + mixing[:, :, n] @ update)
        state_t = fading[:, :, n] * state_t + carried_t[:, :, n] @ update
    y = xp.stack(ys, axis=2).reshape(batch, heads, length, width)
    return y.transpose(0, 2, 1, 3).astype(dtype), _transposed(state_t)


def _decay(log: Any, xp: Any) -> Any:
    return xp.where(log > FADED, xp.exp(log), 0)


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _laid_out(x: Any, xp: Any) -> Any:
    """Row by row in memory: NumPy keeps a transposed layout through sums and products, which costs half the speed."""
    return np.ascontiguousarray(x) if xp is np else mx.contiguous(x)


def _chunked(x: Any, xp: Any) -> Any:
    """[B, T, H, d] -> [B, H, T / CHUNK, CHUNK, d] float32"""
    batch, length, heads, width = x.shape
    return x.astype(xp.float32).transpose(0, 2, 1, 3).reshape(batch, heads, length // CHUNK, CHUNK, width)


def _spans(log_g: Any, xp: Any) -> Any:
    """[..., CHUNK, 1] -> D [..., CHUNK, CHUNK], D[t, i] = sum of log g over (i, t] for i <= t (above: 0)."""
    rows = xp.broadcast_to(log_g, (*log_g.shape[:-1], CHUNK))
    return xp.cumsum(xp.tril(rows, -1), axis=-2)


def _inverse(a: Any, xp: Any) -> Any:
    """(I + A)^-1 of strictly lower triangular A [..., 16, 16]: (I - A)(I + A^2)(I + A^4)(I + A^8), as A^16 = 0."""
    one = xp.eye(CHUNK, dtype=xp.float32)
    result, power = one - a, a
    for _ in range(3):
        power = power @ power
        result = result @ (one + power)
    return result
