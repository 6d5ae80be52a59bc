"""Products of float32 matrices as MLX's CPU build takes them: by the weight as stored, and by the weight transposed.

    python -m tools.bench_layout [--rounds 30]

Why provider/backends/mlx/cpu_layout.py exists. Best of the rounds; says whether the two results are the same bits.
"""

import argparse
import time

import mlx.core as mx

SHAPES = [(8, 128, 256), (8, 128, 1024), (512, 128, 256)]
"""Rows, inputs, outputs: the demo model's, in a decode step of 8 and in a prefill chunk."""


def best_us(x: mx.array, weight: mx.array, rounds: int) -> float:
    mx.eval(x @ weight)
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        mx.eval(x @ weight)
        taken.append(time.perf_counter() - began)
    return 1e6 * min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    told = parser.parse_args()
    for rows, inputs, outputs in SHAPES:
        x, weight = mx.random.normal((rows, inputs)), mx.random.normal((outputs, inputs))
        transposed = mx.contiguous(weight.T)
        mx.eval(x, weight, transposed)
        same = bool(mx.array_equal(x @ weight.T, x @ transposed))
        stored_us, laid_out_us = best_us(x, weight.T, told.rounds), best_us(x, transposed, told.rounds)
        bits = "the same bits" if same else "OTHER BITS"
        print(f"{rows}, {inputs}, {outputs}: {stored_us:.0f} us as stored, {laid_out_us:.0f} us transposed, {bits}")


if __name__ == "__main__":
    main()
