"""The gated delta recurrence alone: in chunks against step by step, 512 positions.

    python -m tools.bench_recurrence [--rounds 5] [--json]

float32, mx.compile off, the two forms taking turns; medians.
"""

import argparse
import json
import statistics
import time
from typing import Any

import mlx.core as mx
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from provider.backends.mlx.gated_delta import recur

GEOMETRIES = [(2, 4, 32), (4, 8, 64), (16, 32, 128)]
"""Key heads, value heads, head dimension."""
POSITIONS = 512


def inputs(key_heads: int, value_heads: int, width: int) -> list[mx.array]:
    mx.random.seed(0)
    q, k = (mx.random.normal((1, POSITIONS, key_heads, width)) for _ in range(2))
    q, k = normalize_qk(q, k, inv_scale=width**-0.5, eps=1e-6)
    v = mx.random.normal((1, POSITIONS, value_heads, width))
    a, b = (mx.random.normal((1, POSITIONS, value_heads)) for _ in range(2))
    a_log, dt_bias = mx.random.uniform(-3, 3, (value_heads,)), mx.ones(value_heads)
    told = [q, k, v, a, b, a_log, dt_bias, mx.zeros((1, value_heads, width, width))]
    mx.eval(told)
    return told


def seconds(form: Any, told: list[mx.array]) -> float:
    began = time.perf_counter()
    mx.eval(form(*told))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    mx.disable_compile()
    results = []
    for geometry in GEOMETRIES:
        arrays = inputs(*geometry)
        pairs = [(seconds(gated_delta_update, arrays), seconds(recur, arrays)) for _ in range(told.rounds + 1)][1:]
        steps_ms, chunks_ms = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
        results.append(
            {"geometry": geometry, "steps_ms": steps_ms, "chunks_ms": chunks_ms, "ratio": steps_ms / chunks_ms}
        )
        if not told.json:
            print(f"{geometry!s:14} steps {steps_ms:7.1f} ms, chunks {chunks_ms:7.1f} ms: {steps_ms / chunks_ms:.2f}x")
    if told.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
