"""The stepping form that keeps every state against mlx-lm's, bit for bit."""

import mlx.core as mx
import pytest
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from provider.backends.mlx import gated_steps
from provider.backends.mlx.gated_steps import in_steps

GEOMETRIES = [(2, 4, 32, 32), (1, 3, 16, 48), (2, 2, 64, 32)]


def inputs(geometry: tuple[int, int, int, int], length: int, dtype: mx.Dtype) -> list[mx.array]:
    key_heads, value_heads, key_dim, value_dim = geometry
    mx.random.seed(5)
    q, k = (mx.random.normal((3, length, key_heads, key_dim)).astype(dtype) for _ in range(2))
    q, k = normalize_qk(q, k, inv_scale=key_dim**-0.5, eps=1e-6)
    v = mx.random.normal((3, length, value_heads, value_dim)).astype(dtype)
    a, b = (mx.random.normal((3, length, value_heads)).astype(dtype) for _ in range(2))
    a_log, dt_bias = mx.random.uniform(-3, 3, (value_heads,)), mx.ones(value_heads).astype(dtype)
    return [q, k, v, a, b, a_log, dt_bias, mx.random.normal((3, value_heads, value_dim, key_dim))]


@pytest.mark.parametrize("launched", [False, True], ids=["computed here", "launched one by one"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_position_and_state_is_that_of_mlx_lm(
    geometry: tuple[int, int, int, int], dtype: mx.Dtype, launched: bool
) -> None:
    if mx.default_device() != mx.Device(mx.cpu):
        pytest.skip("needs MLX's CPU device: others sum in an order of their own")
    told = inputs(geometry, 4, dtype)
    y, states = (gated_steps._in_launches if launched else in_steps)(*told)
    assert (y.dtype, len(states)) == (dtype, 4)
    for length, state in enumerate(states, start=1):
        expected, expected_state = gated_delta_update(*(one[:, :length] for one in told[:5]), *told[5:])
        assert mx.array_equal(y[:, :length], expected)
        assert mx.array_equal(state, expected_state)
