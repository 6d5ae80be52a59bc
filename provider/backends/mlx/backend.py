"""The MLX backend: Metal on a Mac, CUDA or the CPU elsewhere, through the same Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from provider.backends.base import BackendFacts, BackendMemory, Row
from provider.backends.mlx.block_cache import KV_BLOCK_TOKENS
from provider.backends.mlx.forward import Forward
from provider.backends.mlx.generic import Generic
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.loading import load
from provider.backends.mlx.sampling import Sampler, sample
from provider.errors import ModelUnsupported
from provider.generation import Sampling
from provider.models.architecture import LayerKind
from provider.models.checkpoint import read_checkpoint


@dataclass(slots=True)
class Launch:
    """A decode step under way: its tokens [B], not waited for yet, and the row of each sequence."""

    tokens: mx.array
    rows: dict[str, int]

    def __contains__(self, id: str) -> bool:
        return id in self.rows

    def without(self, id: str) -> bool:
        """Forgets a sequence; False when none is left."""
        self.rows.pop(id, None)
        return bool(self.rows)

    def read(self) -> dict[str, int]:
        """Waits for the tokens."""
        tokens = _integers(self.tokens)
        return {id: tokens[row] for id, row in self.rows.items()}


class MlxBackend:
    """Implements provider.backends.base.Backend for every family of provider.models.families."""

    def __init__(self, directory: Path) -> None:
        """Raises ModelError, with its reason, for a checkpoint that cannot be served here."""
        _set_compile_mode()
        checkpoint = read_checkpoint(directory)
        model = load(checkpoint)
        hybrid = LayerKind.LINEAR in checkpoint.architecture.layer_kinds
        self._forward: Forward = Hybrid(model) if hybrid else Generic(model)
        self._samplers: dict[str, Sampler] = {}
        self._ahead: Launch | None = None
        _try_one_position(self._forward, directory)
        mx.eval(model.parameters())
        self.facts = BackendFacts(
            device=str(mx.default_device()),
            vocab_size=checkpoint.vocab_size,
            context_length=checkpoint.context_length,
            weight_bytes=sum(array.nbytes for _, array in tree_flatten(model.parameters())),
            kv_bytes_per_token=self._forward.kv_bytes_per_token,
            state_bytes=self._forward.state_bytes,
            block_tokens=KV_BLOCK_TOKENS,
        )

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        self._forward.open(id)
        self._samplers[id] = Sampler.of(sampling, prompt, emitted)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        if position is None:
            self._forward.append(id, tokens)
            mx.eval(*self._forward.arrays([id]))
            return None
        token = sample(self._forward.logits_after(id, tokens), [(self._samplers[id], position)])
        mx.eval(token, *self._forward.arrays([id]))
        return self._drawn(id, _integers(token)[0])

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[int]:
        """With `ahead`, the next step of the same rows is under way when this one's tokens are returned: the
        device computes while the caller detokenises, sends and plans."""
        under_way, self._ahead = self._ahead, None
        if under_way is not None and under_way.rows.keys() - {row.id for row in rows}:
            raise ValueError("every decoding sequence takes part in a step, or is released")
        launches = [] if under_way is None else [under_way]
        fresh = [row for row in rows if under_way is None or row.id not in under_way]
        if fresh:
            launches.append(self._launch(fresh, mx.array([row.token for row in fresh])))
        if ahead and not any(self._samplers[row.id].looks_back for row in rows):
            following = [Row(row.id, row.token, row.position + 1) for row in rows]
            self._ahead = self._launch(following, _gather(launches, rows))
        tokens = {id: token for launch in launches for id, token in launch.read().items()}
        return [self._drawn(row.id, tokens[row.id]) for row in rows]

    def release(self, id: str) -> None:
        self._forward.release(id)
        self._samplers.pop(id, None)
        if self._ahead is not None and not self._ahead.without(id):
            self._ahead = None

    def memory(self) -> BackendMemory:
        return BackendMemory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def close(self) -> None:
        for id in list(self._samplers):
            self.release(id)
        mx.clear_cache()

    def _launch(self, rows: Sequence[Row], tokens: mx.array) -> Launch:
        """Begins a step of these rows, fed `tokens` [B]; returns without waiting for it."""
        positions = {row.id: row.position for row in rows}
        ordered, logits = self._forward.decode([*positions], tokens)
        drawn = sample(logits, [(self._samplers[id], positions[id]) for id in ordered])
        mx.async_eval(drawn, *self._forward.arrays(ordered))
        return Launch(drawn, {id: row for row, id in enumerate(ordered)})

    def _drawn(self, id: str, token: int) -> int:
        self._samplers[id].note(token)
        return token


def _try_one_position(forward: Forward, directory: Path) -> None:
    """What this machine's MLX cannot compute is found here, and not by the first request."""
    forward.open("")
    try:
        mx.eval(forward.logits_after("", [0]))
    except RuntimeError as error:
        device = mx.default_device().type.name
        raise ModelUnsupported(f"{directory}: MLX cannot run it on this machine's {device}: {error}") from error
    finally:
        forward.release("")


def _gather(launches: Sequence[Launch], rows: Sequence[Row]) -> mx.array:
    """The tokens [B] of these rows, in their order, from steps that may still be under way."""
    tokens = launches[0].tokens if len(launches) == 1 else mx.concatenate([one.tokens for one in launches])
    places: dict[str, int] = {}
    begin = 0
    for launch in launches:
        places |= {id: begin + row for id, row in launch.rows.items()}
        begin += launch.tokens.shape[0]
    order = [places[row.id] for row in rows]
    return tokens if order == [*range(begin)] else tokens[mx.array(order)]


def _integers(tokens: mx.array) -> list[int]:
    values: Any = tokens.tolist()  # typed by mlx as any nesting of numbers
    return list(values)


def _set_compile_mode() -> None:
    """On the CPU, mx.compile starts a C++ compiler (seconds at the first launches, and only where there is one)
    for a tenth of a decode step: off, so that every machine runs the same code. Metal and CUDA keep it."""
    if mx.default_device() == mx.Device(mx.cpu):
        mx.disable_compile()
