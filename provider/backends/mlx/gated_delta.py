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
"""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update

CHUNK = 16
"""Positions in a chunk; measured here: 16 beats 32 and 64 at every geometry tried. The scheduler cuts on this grid."""


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
    is enough to part from the reference where two tokens are nearly tied, and there is little speed to win there.
    """
    whole = q.shape[1] // CHUNK * CHUNK if _chunks_pay(q.dtype) else 0
    if whole == 0:
        return gated_delta_update(q, k, v, a, b, a_log, dt_bias, state)
    decay = log_decay(a_log, a[:, :whole], dt_bias)
    strength = mx.sigmoid(b[:, :whole])
    y, state = in_chunks(q[:, :whole], k[:, :whole], v[:, :whole], decay, strength, state)
    if whole == q.shape[1]:
        return y, state
    rest = [one[:, whole:] for one in (q, k, v, a, b)]
    y_rest, state = gated_delta_update(*rest, a_log, dt_bias, state)
    return mx.concatenate([y, y_rest], axis=1), state


def _chunks_pay(dtype: mx.Dtype) -> bool:
    if mx.metal.is_available():
        return False
    return dtype == mx.float32 or mx.default_device() != mx.Device(mx.cpu)


def log_decay(a_log: mx.array, a: mx.array, dt_bias: mx.array) -> mx.array:
    """log g [B, T, Hv] float32, from the same expression as mlx-lm's compute_g."""
    return -mx.exp(a_log.astype(mx.float32)) * nn.softplus(a + dt_bias).astype(mx.float32)


def in_chunks(
    q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """As `recur`, for T a multiple of CHUNK, with log g and beta [B, T, Hv] given."""
    dtype, (batch, length, heads, width) = q.dtype, v.shape
    repeats = heads // q.shape[2]
    q, k = (_chunked(one, repeats) for one in (q, k))
    v = _chunked(v, 1)
    log_g, beta = (_chunked(one[..., None], 1) for one in (log_g, beta))
    spans = _spans(log_g[..., 0])
    since_start = mx.exp(mx.cumsum(log_g, axis=-2))
    keys_t = _transposed(k)
    strictly = mx.tril(mx.exp(spans), -1)
    inverse = _inverse(beta * strictly * (k @ keys_t))
    values = inverse @ (beta * v)
    # What S_0 adds to U and to Y, in one matrix: [B, H, N, 2 * CHUNK, dk].
    from_state = mx.concatenate([inverse @ (beta * since_start * k), since_start * q], axis=-2)
    mixing = mx.tril(mx.exp(spans)) * (q @ keys_t)
    carried_t = _transposed(mx.exp(spans[..., -1, :])[..., None] * k)
    fading = since_start[..., -1:, :]
    state_t = _transposed(state)
    ys = []
    for n in range(length // CHUNK):
        seen = from_state[:, :, n] @ state_t
        update = values[:, :, n] - seen[..., :CHUNK, :]
        ys.append(seen[..., CHUNK:, :] + mixing[:, :, n] @ update)
        state_t = fading[:, :, n] * state_t + carried_t[:, :, n] @ update
    y = mx.stack(ys, axis=2).reshape(batch, heads, length, width)
    return y.transpose(0, 2, 1, 3).astype(dtype), _transposed(state_t)


def _transposed(x: mx.array) -> mx.array:
    """Swaps the last two axes and lays the result out anew: a plain BLAS multiplies untransposed operands several
    times faster."""
    return mx.contiguous(x.swapaxes(-1, -2))


def _chunked(x: mx.array, repeats: int) -> mx.array:
    """[B, T, H, d] -> [B, H * repeats, T / CHUNK, CHUNK, d] float32"""
    batch, length, heads, width = x.shape
    x = x.astype(mx.float32).transpose(0, 2, 1, 3).reshape(batch, heads, length // CHUNK, CHUNK, width)
    return x if repeats == 1 else mx.repeat(x, repeats, axis=1)


def _spans(log_g: mx.array) -> mx.array:
    """[..., CHUNK] -> D [..., CHUNK, CHUNK], D[t, i] = sum of log g over (i, t] for i <= t (above: 0)."""
    rows = mx.broadcast_to(log_g[..., None], (*log_g.shape, CHUNK))
    return mx.cumsum(mx.tril(rows, -1), axis=-2)


def _inverse(a: mx.array) -> mx.array:
    """(I + A)^-1 of strictly lower triangular A [..., 16, 16]: (I - A)(I + A^2)(I + A^4)(I + A^8), as A^16 = 0."""
    one = mx.eye(CHUNK)
    result, power = one - a, a
    for _ in range(3):
        power = power @ power
        result = result @ (one + power)
    return result
