"""Sequences of mlx-lm's own model classes in exact mode: each lane is a pass of the class over the lane's rows."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from provider.backends.mlx.forward import Pass
from provider.backends.mlx.generic import Generic
from provider.backends.mlx.ingredients import Ingredients
from provider.backends.mlx.row_attention import Rows
from provider.exact.packing import Lane


class LanedGeneric(Generic):
    """Implements provider.backends.mlx.forward.Forward. Of a class that computes its attention by itself, a lane is one
    row: it is given one sequence at a time."""

    def __init__(self, model: Any, ingredients: Ingredients) -> None:
        super().__init__(model)
        self._packing = ingredients.packing

    def append(self, id: str, tokens: Sequence[int]) -> None:
        """In the launches of `logits_after`: a prompt's last chunk is not drawn from when it is computed again."""
        self.logits_after(id, tokens)

    def decode(self, ids: Sequence[str], tokens: mx.array, widths: Sequence[int]) -> list[Pass]:
        assert max(widths) == 1, "nothing drafts for these families"
        return [self._lane([ids[i] for i in lane.members], tokens, lane) for lane in self._packing.pack(widths)]

    def _lane(self, ids: Sequence[str], tokens: mx.array, lane: Lane) -> Pass:
        padding = lane.rows - len(ids)
        caches = [self._caches[id] for id in ids]
        fed = tokens[mx.array([*lane.members, *[lane.members[0]] * padding])]
        if self.by_row:
            layers: Any = [Rows(layer, padding) for layer in zip(*caches, strict=True)]
        else:
            assert lane.rows == 1, "its class takes no rows of several sequences"
            (layers,) = caches
        logits = self._model(fed[:, None], cache=layers)
        return Pass(ids, [1] * len(ids), logits[:, -1], None)
