"""float32 weights laid out for a plain BLAS.

MLX's CPU build multiplies by `weight.T`, which the reference BLAS of its wheels takes through dot products. With the
weight stored transposed the same sums run over contiguous rows: up to 1.8x as fast (docs/benchmarks.md), and
bit for bit the same result, as each output is summed over k in the same order. bfloat16 and quantised weights take
other paths and gain nothing. Metal and CUDA have kernels for both layouts, so this is done on the CPU alone.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path


class TransposedLinear(nn.Module):
    """y = x W^T (+ b), with `weight_t` = W^T [in, out]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight_t = mx.contiguous(linear.weight.T)
        if "bias" in linear:
            self.bias = linear.bias

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.weight_t) if "bias" in self else x @ self.weight_t


class TransposedEmbedding(nn.Module):
    """An embedding that is its model's output matrix too: rows are looked up as columns of `weight_t` [H, V]."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight_t = mx.contiguous(embedding.weight.T)

    def __call__(self, ids: mx.array) -> mx.array:
        return mx.moveaxis(mx.take(self.weight_t, ids, axis=1), 0, -1)

    def as_linear(self, x: mx.array) -> mx.array:
        return x @ self.weight_t


def lay_out_for_cpu(model: nn.Module, tied_embedding: bool) -> None:
    """Replaces the model's float32 Linear modules, and its embedding if that is tied, in place. The CPU only."""

    def replaced(path: str, module: Any) -> Any:
        if type(module) is nn.Linear and module.weight.dtype == mx.float32:
            return TransposedLinear(module)
        if tied_embedding and type(module) is nn.Embedding and module.weight.dtype == mx.float32:
            return TransposedEmbedding(module)
        return module

    leaves = tree_map_with_path(replaced, model.leaf_modules(), is_leaf=nn.Module.is_module)
    model.update_modules(leaves)
    mx.eval(model.parameters())
