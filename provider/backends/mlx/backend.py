"""The MLX backend: Metal on a Mac, CUDA or the CPU elsewhere, through the same Python."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from provider.backends.base import BackendFacts, BackendMemory, DraftSeconds, Row, Run
from provider.backends.mlx.block_cache import KV_BLOCK_TOKENS
from provider.backends.mlx.device import wire, wired_limit
from provider.backends.mlx.drafter import Drafter, Pairs
from provider.backends.mlx.forward import Forward, Pass
from provider.backends.mlx.generic import Generic
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.loading import load
from provider.backends.mlx.mtp_head import MtpHead
from provider.backends.mlx.mtp_weights import load_head
from provider.backends.mlx.sampling import Sampler, sample
from provider.backends.mlx.self_test import self_test
from provider.backends.mlx.verification import Verification, integers
from provider.generation import Sampling
from provider.models.architecture import LayerKind
from provider.models.checkpoint import read_checkpoint
from provider.mtp.head import HeadArtifact

CACHE_LIMIT_BYTES = 2**30
"""Buffers kept for reuse count as used: more than the next forward pass can take is only in the way of others."""


Sample = Callable[[mx.array, Sequence[tuple[Sampler, int]]], mx.array]


@dataclass(slots=True)
class Launch:
    """A decode step of one position each under way: its tokens [B], not waited for yet, and each sequence's row."""

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
        tokens = integers(self.tokens)
        return {id: tokens[row] for id, row in self.rows.items()}


class MlxBackend:
    """Implements provider.backends.base.Backend for every family of provider.models.families."""

    def __init__(self, directory: Path, drafter: Drafter | None = None, draw: Sample = sample) -> None:
        """Raises ModelError, with its reason, for a checkpoint that cannot be served here. It drafts with `drafter`,
        or with the head it is given later, and draws its tokens with `draw`."""
        _set_compile_mode()
        checkpoint = read_checkpoint(directory)
        self._model = load(checkpoint)
        hybrid = LayerKind.LINEAR in checkpoint.architecture.layer_kinds
        self._forward: Forward = Hybrid(self._model) if hybrid else Generic(self._model)
        self._samplers: dict[str, Sampler] = {}
        self._ahead: Launch | None = None
        self._wired_bytes = 0
        self.draft_seconds = DraftSeconds()
        self._drafter = drafter
        self._sample = draw
        self_test(self._forward, directory)
        mx.eval(self._model.parameters())
        self._trunk_facts = BackendFacts(
            device=str(mx.default_device()),
            vocab_size=checkpoint.vocab_size,
            context_length=checkpoint.context_length,
            weight_bytes=sum(array.nbytes for _, array in tree_flatten(self._model.parameters())),
            kv_bytes_per_token=self._forward.kv_bytes_per_token,
            state_bytes=self._forward.state_bytes,
            block_tokens=KV_BLOCK_TOKENS,
        )

    def adopt(self, artifact: HeadArtifact) -> None:
        """From now on it drafts with this head, whose weights are read now. Raises ValueError or RuntimeError for what
        cannot be read or computed here."""
        assert isinstance(self._forward, Hybrid), "a head belongs to a trunk that gives its hidden states"
        assert not self._samplers, "no sequence is open while a head is changed"
        trunk = self._forward.trunk
        self._drafter = MtpHead(load_head(artifact, trunk.args), trunk, artifact.max_drafts)

    def dismiss(self) -> None:
        """Drafts no more, and gives the head's memory back."""
        assert not self._samplers, "no sequence is open while a head is changed"
        self._drafter = None

    @property
    def facts(self) -> BackendFacts:
        trunk, drafter = self._trunk_facts, self._drafter
        if drafter is None:
            return trunk
        return replace(
            trunk,
            weight_bytes=trunk.weight_bytes + drafter.weight_bytes,
            kv_bytes_per_token=trunk.kv_bytes_per_token + drafter.kv_bytes_per_token,
            max_drafts=drafter.max_drafts,
        )

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        self._forward.open(id)
        self._samplers[id] = Sampler.of(sampling, prompt, emitted)
        if self._drafter is not None:
            self._drafter.open(id)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        drawn = []
        if position is None:
            hidden = self._forward.append(id, tokens)
        else:
            logits, hidden = self._forward.logits_after(id, tokens)
            drawn = [self._sample(logits, [(self._samplers[id], position)])]
        if self._drafter is not None and hidden is not None:
            self._drafter.prefilled(id, tokens, hidden)
            drawn += self._drafter.arrays(id)
        mx.eval(*drawn, *self._forward.arrays([id]))
        return None if position is None else self._drawn(id, integers(drawn[0])[0])

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[Run]:
        """Without drafts, and with `ahead`, the next step of the same rows is under way when this one's tokens are
        returned: the device computes while the caller detokenises, sends and plans. After a step with drafts it is
        the drafter's work on the next ones that is."""
        under_way, self._ahead = self._ahead, None
        if under_way is not None and under_way.rows.keys() - {row.id for row in rows}:
            raise ValueError("every decoding sequence takes part in a step, or is released")
        launches = [] if under_way is None else [under_way]
        fresh = [row for row in rows if under_way is None or row.id not in under_way]
        if self._drafter is not None:
            for row in fresh:
                self._drafter.start(row.id, row.token)
        verified: dict[str, Run] = {}
        if any(row.drafts for row in fresh):
            verified = self._verify(fresh)
        elif fresh:
            launches.append(self._launch(fresh, mx.array([row.token for row in fresh])))
        if ahead and not any(row.drafts or self._samplers[row.id].looks_back for row in rows):
            following = [Row(row.id, row.token, row.position + 1) for row in rows]
            self._ahead = self._launch(following, _gather(launches, rows))
        runs = verified | {id: Run([self._drawn(id, token)]) for one in launches for id, token in one.read().items()}
        if self._drafter is not None and ahead:
            self._drafter.begin([row.id for row in rows if row.drafts])
        return [runs[row.id] for row in rows]

    def release(self, id: str) -> None:
        self._forward.release(id)
        self._samplers.pop(id, None)
        if self._drafter is not None:
            self._drafter.release(id)
        if self._ahead is not None and not self._ahead.without(id):
            self._ahead = None

    def memory(self) -> BackendMemory:
        return BackendMemory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def clear_cache(self) -> None:
        mx.clear_cache()

    def limit(self, size_bytes: int) -> None:
        """Beyond it MLX first frees its cache and then allocates all the same."""
        mx.set_memory_limit(size_bytes)
        mx.set_cache_limit(min(size_bytes, CACHE_LIMIT_BYTES))
        self._wired_bytes = wired_limit(size_bytes)
        wire(self._wired_bytes)

    def rest(self, resting: bool) -> None:
        if resting:
            mx.clear_cache()
        wire(0 if resting else self._wired_bytes)

    def close(self) -> None:
        for id in list(self._samplers):
            self.release(id)
        mx.clear_cache()

    def _launch(self, rows: Sequence[Row], tokens: mx.array) -> Launch:
        """Begins a step of one position for each of these rows, fed `tokens` [B]; returns without waiting for it."""
        positions = {row.id: row.position for row in rows}
        done = self._forward.decode([*positions], tokens, [1] * len(rows))
        drawn = self._sample(done.logits, [(self._samplers[id], positions[id]) for id in done.ids])
        mx.async_eval(drawn, *self._forward.arrays(done.ids))
        self._tell_drafter(done, drawn, done.widths)
        return Launch(drawn, {id: row for row, id in enumerate(done.ids)})

    def _verify(self, rows: Sequence[Row]) -> dict[str, Run]:
        """A step in which each row is fed its token and its drafts at once. Every token is drawn from the trunk's own
        logits at its own position; those behind a draft that was wrong are dropped, with all that they left behind."""
        assert self._drafter is not None, "facts.max_drafts is 0"
        begun = time.perf_counter()
        verification = Verification(rows, self._drafter)
        drafted = time.perf_counter()
        done = self._forward.decode([row.id for row in rows], verification.tokens, verification.widths)
        drawn = self._sample(done.logits, verification.draws(done.ids, self._samplers))
        mx.async_eval(drawn)
        runs = verification.runs(done.ids, integers(drawn))
        verified = time.perf_counter()
        kept = [len(runs[id].tokens) for id in done.ids]
        self._forward.keep(done, kept)
        self._tell_drafter(done, drawn, kept)
        for id in done.ids:
            for token in runs[id].tokens:
                self._drawn(id, token)
        self.draft_seconds.draft += drafted - begun
        self.draft_seconds.verify += verified - drafted
        self.draft_seconds.bookkeeping += time.perf_counter() - verified
        return runs

    def _tell_drafter(self, done: Pass, drawn: mx.array, kept: Sequence[int]) -> None:
        """Which of a pass's positions stand, and what was drawn at them [R]."""
        if self._drafter is None or done.hidden is None:
            return
        begin = 0
        for id, width, count in zip(done.ids, done.widths, kept, strict=True):
            self._drafter.note(id, Pairs(done.hidden, drawn, begin, begin + count))
            begin += width

    def _drawn(self, id: str, token: int) -> int:
        self._samplers[id].note(token)
        return token


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


def _set_compile_mode() -> None:
    """On the CPU, mx.compile starts a C++ compiler (seconds at the first launches, and only where there is one)
    for a tenth of a decode step: off, so that every machine runs the same code. Metal and CUDA keep it."""
    if mx.default_device() == mx.Device(mx.cpu):
        mx.disable_compile()
