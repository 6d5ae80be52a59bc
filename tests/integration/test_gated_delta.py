"""The chunk form of the gated delta rule against mlx-lm's stepping form."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from provider.backends.mlx.gated_delta import CHUNK, in_chunks, log_decay, recur

GEOMETRIES = [(2, 4, 32, 32), (4, 8, 64, 64), (1, 3, 16, 48), (2, 2, 64, 32), (16, 32, 128, 128)]
GATES = {"ordinary": 1.0, "extreme": 40.0, "open": 0.001}
TOLERANCE = 1e-5
"""Relative to the largest value."""


def inputs(geometry: tuple[int, int, int, int], length: int, gate: float) -> dict[str, Any]:
    key_heads, value_heads, key_dim, value_dim = geometry
    mx.random.seed(7)
    q = mx.random.normal((1, length, key_heads, key_dim))
    k = mx.random.normal((1, length, key_heads, key_dim))
    q, k = normalize_qk(q, k, inv_scale=key_dim**-0.5, eps=1e-6)
    return {
        "q": q,
        "k": k,
        "v": mx.random.normal((1, length, value_heads, value_dim)),
        "a": mx.random.normal((1, length, value_heads)) * gate,
        "b": mx.random.normal((1, length, value_heads)) * 2,
        "A_log": mx.random.uniform(-3, 3, (value_heads,)),
        "dt_bias": mx.ones(value_heads),
        "state": mx.random.normal((1, value_heads, value_dim, key_dim)),
    }


def ours(told: dict[str, Any], start: int = 0, end: int | None = None) -> tuple[mx.array, mx.array]:
    cut = [told[name][:, start:end] for name in ("q", "k", "v", "a", "b")]
    return recur(*cut, told["A_log"], told["dt_bias"], told["state"])


def apart(one: mx.array, other: mx.array) -> float:
    largest = mx.abs(other).max().item()
    return float(mx.abs(one - other).max().item()) / float(largest)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_chunks_equal_steps(geometry: tuple[int, int, int, int], gate: str) -> None:
    length = 3 * CHUNK + 5 if geometry[0] == 16 else 130
    told = inputs(geometry, length, GATES[gate])
    y, state = ours(told)
    y_steps, state_steps = gated_delta_update(**told)
    assert apart(y, y_steps) < TOLERANCE
    assert apart(state, state_steps) < TOLERANCE


@pytest.mark.parametrize("geometry", [GEOMETRIES[0], GEOMETRIES[2], GEOMETRIES[4]])
@pytest.mark.parametrize("cuts", [[16], [48, 64], [16, 32, 48, 64, 80, 96], [112, 160]])
def test_any_cut_on_the_grid_is_bit_identical(geometry: tuple[int, int, int, int], cuts: list[int]) -> None:
    if mx.default_device() != mx.Device(mx.cpu):
        pytest.skip("needs the CPU: a GPU's kernels change with the number of chunks")
    told = inputs(geometry, 183, 1.0)
    whole, state = ours(told)
    ys = []
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        y, told["state"] = ours(told, start, end)
        ys.append(y)
    assert mx.array_equal(mx.concatenate(ys, axis=1), whole)
    assert mx.array_equal(told["state"], state)


@pytest.mark.parametrize("gate", GATES)
def test_chunks_in_mlx_itself_equal_steps(gate: str) -> None:
    told = inputs(GEOMETRIES[1], 4 * CHUNK, GATES[gate])
    decay, strength = log_decay(told["A_log"], told["a"], told["dt_bias"]), mx.sigmoid(told["b"])
    y, state = in_chunks(told["q"], told["k"], told["v"], decay, strength, told["state"])
    y_steps, state_steps = gated_delta_update(**told)
    assert apart(y, y_steps) < TOLERANCE
    assert apart(state, state_steps) < TOLERANCE


def test_bfloat16_on_this_cpu_takes_the_reference_steps_bit_for_bit() -> None:
    told = inputs(GEOMETRIES[0], 40, 1.0)
    told |= {name: told[name].astype(mx.bfloat16) for name in ("q", "k", "v", "a", "b")}
    y, state = ours(told)
    y_steps, state_steps = gated_delta_update(**told)
    if mx.default_device() != mx.Device(mx.cpu):
        pytest.skip("needs MLX's CPU device")
    assert mx.array_equal(y, y_steps)
    assert mx.array_equal(state, state_steps)
