"""A device whose kernels round differently with the size of their launch, as those of GPUs do; for checking that exact
mode does not mind. Nothing that serves uses it.

Between `with` and its end, what is built with MLX's matrix products (plain, quantised, by expert), attention, norms,
convolutions, softmax and sums has its last bits moved: by a fixed pattern over the columns, which depends on nothing
but how many rows the launch has, how long its keys are, and, where experts are sorted, how many rows share one. A
product of two batches (queries with their keys) is moved by both their shapes.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache
from hashlib import blake2b
from math import prod
from types import TracebackType
from typing import Any

import mlx.core as mx
import numpy as np

Kernel = Callable[..., mx.array]

RELATIVE = {mx.float32: 2.0**-16, mx.bfloat16: 2.0**-7, mx.float16: 2.0**-10}
"""How far a value is moved: many times float32's rounding, so that what reaches the logits is seen; once that of the
half precisions."""
GROUP_SIZES = 16


class NumericsAdversary:
    """A context; not entered twice at a time. `rows_met`: of the products it has moved, on how many rows."""

    def __init__(self) -> None:
        self.rows_met: set[int] = set()
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "NumericsAdversary":
        assert not self._undo, "entered twice"
        self._replace(mx.array, "__matmul__", self._product)
        self._replace(mx, "matmul", self._product)
        self._replace(
            mx, "addmm", lambda true, c, a, b, *more, **named: self._moved_product(true(c, a, b, *more, **named), a)
        )
        self._replace(mx, "quantized_matmul", self._product)
        self._replace(mx, "gather_mm", self._by_expert)
        self._replace(mx, "gather_qmm", self._by_expert)
        self._replace(mx.fast, "scaled_dot_product_attention", _attention)
        self._replace(mx.fast, "rms_norm", _by_rows("norm"))
        self._replace(mx.fast, "layer_norm", _by_rows("norm"))
        self._replace(
            mx, "conv1d", lambda true, x, *more, **named: moved(true(x, *more, **named), ("conv", *x.shape[:2]))
        )
        self._replace(
            mx, "softmax", lambda true, x, *more, **named: moved(true(x, *more, **named), ("softmax", *x.shape))
        )
        self._replace(mx.array, "sum", _sum)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            owner, name, true = self._undo.pop()
            setattr(owner, name, true)

    def _replace(self, owner: Any, name: str, kernel: Callable[..., mx.array]) -> None:
        true = getattr(owner, name)
        self._undo.append((owner, name, true))
        setattr(owner, name, lambda *told, **named: kernel(true, *told, **named))

    def _product(self, true: Kernel, x: mx.array, w: mx.array, *more: Any, **named: Any) -> mx.array:
        y = true(x, w, *more, **named)
        return self._moved_product(y, x) if w.ndim == 2 else moved(y, ("batch", *x.shape, *w.shape))

    def _moved_product(self, y: mx.array, x: mx.array) -> mx.array:
        self.rows_met.add(prod(x.shape[:-1]))
        return moved(y, ("product", prod(x.shape[:-1])))

    def _by_expert(self, true: Kernel, x: mx.array, *more: Any, **named: Any) -> mx.array:
        y, experts = true(x, *more, **named), named["rhs_indices"]
        if not named.get("sorted_indices"):
            return moved(y, ("experts", experts.size))
        return _moved_by_group(y, experts.flatten())


class Hostile:
    """A backend whose passes are computed under an adversary."""

    def __init__(self, backend: Any, adversary: NumericsAdversary) -> None:
        self._backend = backend
        self._adversary = adversary

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def prefill(self, *told: Any) -> Any:
        with self._adversary:
            return self._backend.prefill(*told)

    def decode(self, *told: Any, **named: Any) -> Any:
        with self._adversary:
            return self._backend.decode(*told, **named)


def moved(y: mx.array, launch: Hashable) -> mx.array:
    """`y` with each column moved as this launch moves it."""
    relative = RELATIVE.get(y.dtype)
    if relative is None or y.ndim == 0:
        return y
    return (y.astype(mx.float32) * _pattern(launch, y.shape[-1], relative)).astype(y.dtype)


def _moved_by_group(y: mx.array, experts: mx.array) -> mx.array:
    """Rows [pairs, ..., C], sorted by expert: each as the number of rows that share its expert says."""
    sizes = (experts[:, None] == experts[None, :]).astype(mx.int32).sum(axis=1) % GROUP_SIZES
    relative = RELATIVE[y.dtype]
    table = mx.stack([_pattern(("sorted", size), y.shape[-1], relative) for size in range(GROUP_SIZES)])
    factors = table[sizes].reshape(-1, *[1] * (y.ndim - 2), y.shape[-1])
    return (y.astype(mx.float32) * factors).astype(y.dtype)


def _by_rows(kind: str) -> Callable[..., mx.array]:
    return lambda true, x, *more, **named: moved(true(x, *more, **named), (kind, prod(x.shape[:-1])))


def _attention(true: Kernel, q: mx.array, k: mx.array, v: mx.array, **named: Any) -> mx.array:
    return moved(true(q, k, v, **named), ("attention", q.shape[0], q.shape[2], k.shape[2]))


def _sum(true: Kernel, x: mx.array, *more: Any, **named: Any) -> mx.array:
    return moved(true(x, *more, **named), ("sum", *x.shape[:-1]))


@lru_cache(maxsize=4096)
def _pattern(launch: Hashable, columns: int, relative: float) -> mx.array:
    """[columns] of 1 - relative, 1 or 1 + relative."""
    seed = int.from_bytes(blake2b(repr(launch).encode(), digest_size=8).digest(), "little")
    steps = np.random.default_rng(seed).integers(-1, 2, columns)
    return mx.array((1.0 + relative * steps).astype(np.float32))
