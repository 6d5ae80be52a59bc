"""The MLX backend: Metal on a Mac, CUDA or the CPU elsewhere, through the same Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from provider.backends.base import BackendFacts, BackendMemory, Row
from provider.backends.mlx.qwen3_5 import KV_BLOCK_TOKENS, Cells, Trunk
from provider.backends.mlx.recurrent import Slots
from provider.backends.mlx.sampling import Sampler, sample
from provider.errors import ModelUnsupported
from provider.generation import Sampling

FAMILIES = frozenset({"qwen3_5"})


class MlxBackend:
    """Implements provider.backends.base.Backend for the families it has a forward for."""

    def __init__(self, directory: Path) -> None:
        _set_compile_mode()
        model, config = load_model(directory)
        family = config.get("model_type", "")
        if family not in FAMILIES:
            raise ModelUnsupported(
                f"{directory}: model_type {family!r} is not served; served: {', '.join(sorted(FAMILIES))}."
            )
        self._trunk = Trunk(model)
        self._slots = Slots(self._trunk.recurrent_layers)
        self._cells: dict[str, Cells] = {}
        self._samplers: dict[str, Sampler] = {}
        text = model.language_model.args
        self.facts = BackendFacts(
            device=str(mx.default_device()),
            vocab_size=text.vocab_size,
            context_length=text.max_position_embeddings,
            weight_bytes=sum(array.nbytes for _, array in tree_flatten(model.parameters())),
            kv_bytes_per_token=self._trunk.kv_bytes_per_token,
            state_bytes=self._trunk.state_bytes,
            block_tokens=KV_BLOCK_TOKENS,
        )

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        self._cells[id] = self._trunk.fresh()
        self._samplers[id] = Sampler.of(sampling, prompt, emitted)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        cells = self._cells[id]
        hidden = self._trunk.prefill(cells, tokens)
        if position is None:
            mx.eval(*cells.arrays())
            return None
        token = sample(self._trunk.logits(hidden), [(self._samplers[id], position)])
        mx.eval(token, *cells.arrays())
        return self._drawn(id, _integers(token)[0])

    def decode(self, rows: Sequence[Row]) -> list[int]:
        by_id = {row.id: row for row in rows}
        self._seat(by_id)
        ordered = [by_id[id] for id in self._slots.ids]
        cells = [self._cells[row.id] for row in ordered]
        hidden = self._trunk.decode(cells, self._slots, [row.token for row in ordered])
        draws = [(self._samplers[row.id], row.position) for row in ordered]
        drawn = sample(self._trunk.logits(hidden), draws)
        mx.eval(drawn, *self._slots.arrays())
        tokens = dict(zip(self._slots.ids, _integers(drawn), strict=True))
        return [self._drawn(row.id, tokens[row.id]) for row in rows]

    def release(self, id: str) -> None:
        self._slots.leave(id)
        self._cells.pop(id, None)
        self._samplers.pop(id, None)

    def memory(self) -> BackendMemory:
        return BackendMemory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def close(self) -> None:
        for id in list(self._cells):
            self.release(id)
        mx.clear_cache()

    def _seat(self, by_id: dict[str, Row]) -> None:
        """Moves the rows of sequences that decode for the first time into the slots."""
        for id in by_id:
            cells = self._cells[id]
            if cells.recurrent is not None:
                self._slots.join(id, cells.recurrent)
                cells.recurrent = None
        self._slots.compact()
        resting = set(self._slots.ids) - by_id.keys()
        if resting:
            raise ValueError(f"every decoding sequence takes part in a step; missing: {sorted(resting)}")

    def _drawn(self, id: str, token: int) -> int:
        self._samplers[id].note(token)
        return token


def _integers(tokens: mx.array) -> list[int]:
    values: Any = tokens.tolist()  # typed by mlx as any nesting of numbers
    return list(values)


def _set_compile_mode() -> None:
    """On the CPU, mx.compile starts a C++ compiler (seconds at the first launches, and only where there is one)
    for a tenth of a decode step: off, so that every machine runs the same code. Metal and CUDA keep it."""
    if mx.default_device() == mx.Device(mx.cpu):
        mx.disable_compile()
