"""The `qwen3_5` trunk's decode pass in exact mode. It computes what Trunk.decode computes; what differs is on how many
rows each launch runs: weight matmuls, norms and the head on a lane's, the recurrence on a bank's, one position at a
time, attention on one query of one sequence. Those numbers never depend on who else decodes.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.activations import swiglu
from mlx_lm.models.qwen3_next import Qwen3NextMLP

from provider.backends.mlx.abreast import Abreast
from provider.backends.mlx.attending import Attend
from provider.backends.mlx.banks import Bank
from provider.backends.mlx.device import on_the_cpu
from provider.backends.mlx.laned_attention import LanedAttention
from provider.backends.mlx.laned_recurrence import LanedRecurrence
from provider.backends.mlx.lanes import Crossing, Lanes
from provider.backends.mlx.products import Product, product_of
from provider.backends.mlx.qwen3_5 import Cells, Trunk


class LanedTrunk:
    def __init__(self, trunk: Trunk, attend: Attend) -> None:
        self._trunk = trunk
        self._layers = [_Layer(layer, attend) for layer in trunk.layers]
        self._begins_early = on_the_cpu()

    @property
    def copied_bytes(self) -> int:
        """Of weights that are held beside the model's own."""
        return sum(one.mixer.copied_bytes for one in self._layers if isinstance(one.mixer, LanedRecurrence))

    def decode(
        self, cells: Sequence[Cells], banks: Sequence[Bank], tokens: mx.array, lanes: Lanes, crossing: Crossing
    ) -> list[mx.array]:
        """`tokens` [sum of widths] in the order of `cells` -> hidden [rows, H] of each lane, after the final norm. The
        banks hold every state until `Bank.keep`."""
        abreast = Abreast(lanes.sizes, self._trunk.aside)
        x = self._trunk.embed(lanes.tokens(tokens))
        offsets = lanes.offsets([one.attention[0].offset if one.attention else 0 for one in cells])
        attention = recurrence = 0
        for layer in self._layers:
            normed = abreast.norm(layer.before_mixing, x)
            if isinstance(layer.mixer, LanedRecurrence):
                x = x + layer.mixer(normed, [bank.layers[recurrence] for bank in banks], crossing, abreast)
                recurrence += 1
            else:
                caches = [one.attention[attention] for one in cells]
                x = x + layer.mixer(normed, caches, lanes, offsets, abreast)
                attention += 1
            x = x + layer.fed_forward(abreast.norm(layer.before_feeding, x), abreast)
            if self._begins_early:
                mx.async_eval(x)  # the layer is computed while the next ones are put together
        return abreast.apart(abreast.norm(self._trunk.final_norm, x))


class _Layer:
    def __init__(self, layer: Any, attend: Attend) -> None:
        self.before_mixing = layer.input_layernorm
        self.before_feeding = layer.post_attention_layernorm
        self.mixer: LanedRecurrence | LanedAttention = (
            LanedRecurrence(layer.linear_attn) if layer.is_linear else LanedAttention(layer.self_attn, attend)
        )
        self._mlp = layer.mlp
        self._gate_and_up: list[Product] | None = None
        if isinstance(layer.mlp, Qwen3NextMLP):
            self._gate_and_up = [product_of(layer.mlp.gate_proj), product_of(layer.mlp.up_proj)]
            self._down = product_of(layer.mlp.down_proj)

    def fed_forward(self, x: mx.array, abreast: Abreast) -> mx.array:
        if self._gate_and_up is None:
            return abreast.each(self._mlp, x)
        gate, up = abreast.products(self._gate_and_up, x)
        return abreast.product(self._down, swiglu(gate, up))
