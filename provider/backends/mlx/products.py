"""A model's weight products as functions of rows, made once for a load: what a module looks up and turns about at every
call is looked up and turned about here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from provider.backends.mlx.cpu_layout import TransposedLinear


@dataclass(frozen=True, slots=True)
class Product:
    """`weight_bytes`: how much it reads, however few rows there are."""

    of: Callable[[mx.array], mx.array]
    weight_bytes: int

    def __call__(self, x: mx.array) -> mx.array:
        return self.of(x)


def product_of(module: Any) -> Product:
    weight = _plain_weight(module)
    size_bytes = sum(one.nbytes for one in module.values() if isinstance(one, mx.array))
    return Product(module if weight is None else _by(weight), size_bytes)


def side_by_side(*modules: Any) -> Product | None:
    """Several narrow products of the same rows as one, which holds a copy of their weights; None where they are packed
    in another way."""
    weights = [_plain_weight(module) for module in modules]
    if any(one is None for one in weights):
        return None
    together = mx.contiguous(mx.concatenate([one for one in weights if one is not None], axis=1))
    mx.eval(together)
    return Product(_by(together), together.nbytes)


def _by(weight: mx.array) -> Callable[[mx.array], mx.array]:
    return lambda x: x @ weight


def _plain_weight(module: Any) -> mx.array | None:
    """[in, out] of a module that is nothing but the product with it."""
    if "bias" in module:
        return None
    if type(module) is TransposedLinear:
        weight: mx.array = module.weight_t
        return weight
    if type(module) is nn.Linear:
        turned: mx.array = module.weight.T
        mx.eval(turned)
        return turned
    return None
