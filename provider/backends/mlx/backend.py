"""The MLX backend: Metal on a Mac, CUDA or the CPU elsewhere, through the same Python."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from provider.backends.base import BackendFacts, BackendMemory, DraftSeconds, Landing, Row, Run, Told
from provider.backends.guided import Guided
from provider.backends.mlx.aside import Aside
from provider.backends.mlx.block_cache import KV_BLOCK_TOKENS
from provider.backends.mlx.device import wire, wired_limit
from provider.backends.mlx.drafter import Drafter, Pairs
from provider.backends.mlx.expendable import Expendable
from provider.backends.mlx.forward import Forward, Image, Pass
from provider.backends.mlx.generic import Generic
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.ingredients import Ingredients, Sample
from provider.backends.mlx.lane_grid import LaneGrid, experts_per_token
from provider.backends.mlx.lane_sampling import NOBODY
from provider.backends.mlx.laned_generic import LanedGeneric
from provider.backends.mlx.laned_hybrid import LanedHybrid
from provider.backends.mlx.loading import load
from provider.backends.mlx.logprobs import Logprobs
from provider.backends.mlx.mtp_head import MtpHead
from provider.backends.mlx.mtp_weights import load_head
from provider.backends.mlx.qwen3_5 import Trunk
from provider.backends.mlx.sampling import Sampler, sample
from provider.backends.mlx.self_test import self_test
from provider.backends.mlx.verification import Verification, integers
from provider.generation import Sampling
from provider.models.architecture import LayerKind
from provider.models.checkpoint import read_checkpoint
from provider.mtp.head import HeadArtifact
from provider.parking.lot import Landed, Lot
from provider.parking.mover import Lane

CACHE_LIMIT_BYTES = 2**30
"""Buffers kept for reuse count as used: more than the next forward pass can take is only in the way of others."""


OF_HEAD = "head."
"""Before the names of a parked sequence's arrays that are the drafter's."""


@dataclass(slots=True)
class Launch:
    """A decode pass of one position each under way: its tokens, not waited for yet, and each sequence's row."""

    tokens: mx.array
    rows: dict[str, int]

    def apart(self, ids: Collection[str]) -> tuple["Launch", "Launch"]:
        """Those of `ids`, and the others."""
        ours = {id: row for id, row in self.rows.items() if id in ids}
        return Launch(self.tokens, ours), Launch(self.tokens, {k: v for k, v in self.rows.items() if k not in ours})

    def read(self) -> dict[str, int]:
        """Waits for the tokens."""
        tokens = integers(self.tokens)
        return {id: tokens[row] for id, row in self.rows.items()}


@dataclass(frozen=True, slots=True)
class Kept:
    """What of a parked sequence stays with the host: its marks, and the token that a step begun ahead had drawn for it
    and nobody has been told yet."""

    marks: list[tuple[int, int]]
    drafter_marks: list[tuple[int, int]]
    token: int | None


class MlxBackend(Guided):
    """Implements provider.backends.base.Backend for every family of provider.models.families."""

    def __init__(self, directory: Path, drafter: Drafter | None = None, draw: Sample = sample) -> None:
        """Raises ModelError, with its reason, for a checkpoint that cannot be served here. It drafts with `drafter`,
        or with the head it is given later, and draws its tokens with `draw`."""
        _set_compile_mode()
        checkpoint = read_checkpoint(directory)
        self._declared_drafts = checkpoint.mtp.drafts
        self._model = load(checkpoint)
        hybrid = LayerKind.LINEAR in checkpoint.architecture.layer_kinds
        self._forward: Forward = Hybrid(Trunk(self._model)) if hybrid else Generic(self._model)
        self._exact: Ingredients | None = None
        self._observer: Callable[[mx.array, Sequence[tuple[Sampler, int]]], None] | None = None
        self._samplers: dict[str, Sampler] = {}
        self._ahead: list[Launch] = []
        self._kept: dict[str, Kept] = {}
        self._lot: Lot[mx.array] | None = None
        self._asked: list[Logprobs] = []
        self._wired_bytes = 0
        self.draft_seconds = DraftSeconds()
        self._drafting = Expendable(drafter)
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
        self.draft_with(MtpHead(load_head(artifact, trunk.args), trunk, artifact.max_drafts))

    def dismiss(self) -> None:
        """Drafts no more, and gives the head's memory back."""
        self.draft_with(None)

    def draft_with(self, drafter: Drafter | None) -> None:
        assert not self._samplers, "no sequence is open while a head is changed"
        self._drafting = Expendable(drafter)

    @property
    def drafter(self) -> Drafter | None:
        return self._drafting.drafter

    @property
    def draft_failure(self) -> str | None:
        return self._drafting.failure

    @property
    def grid(self) -> LaneGrid:
        """What is to be known of the model before it decodes in lanes."""
        shared = isinstance(self._forward, Hybrid) or (isinstance(self._forward, Generic) and self._forward.by_row)
        return LaneGrid(shared, experts_per_token(self._model), self._declared_drafts)

    @property
    def shapes(self) -> str:
        """A digest of the shapes and types of the trunk's weights, packed as they are: what its passes take depends on
        them and not on the numbers within."""
        weights = sorted((name, one.shape, str(one.dtype)) for name, one in tree_flatten(self._model.parameters()))
        return sha256(repr(weights).encode()).hexdigest()

    @property
    def aside(self) -> Aside:
        return self._forward.trunk.aside if isinstance(self._forward, Hybrid) else Aside()

    def decode_in_lanes(self, exact: Ingredients | None) -> None:
        """From now on a sequence's logits do not depend on who else decodes; with None, no more."""
        assert not self._samplers, "no sequence is open while the passes change"
        self._exact = exact
        if isinstance(self._forward, Hybrid):
            trunk = self._forward.trunk
            self._forward = Hybrid(trunk) if exact is None else LanedHybrid(trunk, exact)
        else:
            self._forward = Generic(self._model) if exact is None else LanedGeneric(self._model, exact)

    @property
    def facts(self) -> BackendFacts:
        facts, drafting, exact = self._trunk_facts, self._drafting, self._exact
        facts = replace(
            facts,
            weight_bytes=facts.weight_bytes + drafting.weight_bytes,
            kv_bytes_per_token=facts.kv_bytes_per_token + drafting.kv_bytes_per_token,
            max_drafts=drafting.max_drafts,
        )
        if exact is not None:
            drafts = min(facts.max_drafts, exact.rows - 1)
            padding = exact.bank_rows - 1 if facts.state_bytes else 0
            copied = self._forward.copied_bytes if isinstance(self._forward, LanedHybrid) else 0
            facts = replace(
                facts,
                weight_bytes=facts.weight_bytes + copied,
                max_drafts=drafts,
                lane_rows=exact.rows,
                padding_states=padding,
            )
        return facts

    def open(self, id: str, sampling: Sampling, prompt: Sequence[int], emitted: Sequence[int] = ()) -> None:
        self._forward.open(id)
        self._samplers[id] = Sampler.of(sampling, prompt, emitted, self._guide_of(sampling))
        self._drafting.open(id)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        drawn = []
        if position is None:
            hidden = self._forward.append(id, tokens)
        else:
            logits, hidden = self._forward.logits_after(id, tokens)
            drawn = [self._draw(logits, [(self._samplers[id], position)])]
            self._asked = [Logprobs([id], logits, drawn[0], [self._samplers[id]])]
            drawn += self._asked[0].arrays
        if hidden is not None:
            self._drafting.prefilled(id, tokens, hidden)
            drawn += self._drafting.arrays(id)
        mx.eval(*drawn, *self._forward.arrays([id]))
        if position is None:
            return None
        token = integers(drawn[0])[0]
        self._note(id, [token])
        return token

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[Run]:
        """Without drafts, and with `ahead`, the next step of the same rows is under way when this one's tokens are
        returned: the device computes while the caller detokenises, sends and plans. After a step with drafts it is
        the drafter's work on the next ones that is."""
        self._asked = []
        launches = self._take_ahead({row.id for row in rows})
        begun = {id for one in launches for id in one.rows}
        fresh = self._forward.fit([row for row in rows if row.id not in begun])
        for row in fresh:
            self._drafting.start(row.id, row.token)
        drafts, verified = self._drafted(fresh), dict[str, Run]()
        if drafts is not None:
            verified = self._verify(fresh, drafts)
        elif fresh:
            launches += self._launch(fresh, mx.array([row.token for row in fresh]))
        if ahead and not any(row.drafts or self._samplers[row.id].waits for row in rows):
            following = [Row(row.id, row.token, row.position + 1) for row in rows if row.known is None]
            if following:
                self._ahead += self._launch(following, _gather(launches, following))
        known = {row.id for row in rows if row.known is not None}
        drawn = {id: token for one in launches for id, token in one.read().items()}
        runs = verified | {id: Run([token]) for id, token in drawn.items()}
        for id, run in runs.items():
            if id not in known:
                self._note(id, run.tokens)
        if ahead:
            self._drafting.begin([row.id for row in rows if row.drafts])
        return [runs[row.id] for row in rows]

    def told(self, id: str) -> Told:
        sampler = self._samplers[id]
        logprobs = None if sampler.sampling.logprobs is None else [one for it in self._asked for one in it.of(id)]
        return Told(logprobs, None if sampler.guide is None else sampler.guide.failure)

    def park_with(self, lot: Lot[mx.array] | None) -> Lot[mx.array] | None:
        """From now on what is parked goes there; where it went before."""
        former, self._lot = self._lot, lot
        return former

    def observe(self, observer: Callable[[mx.array, Sequence[tuple[Sampler, int]]], None] | None) -> None:
        """From now on it is told the logits of every draw, before it is made; with None, no more."""
        self._observer = observer

    @property
    def savable_bytes(self) -> int | None:
        return None if self._lot is None else self._lot.savable_bytes

    def park(self, id: str) -> None:
        """Waits for the step under way, as the next one would; the sampler stays where it is."""
        assert self._lot is not None, "nothing can be saved here"
        begun = self._take_ahead({id})
        token = begun[0].read()[id] if begun else None
        image = self._forward.park(id)
        head = self._drafting.park(id)
        arrays = image.arrays | {f"{OF_HEAD}{name}": one for name, one in head.arrays.items()}
        mx.eval(arrays)
        self._kept[id] = Kept(image.marks, head.marks, token)
        self._lot.save(id, arrays, sum(one.nbytes for one in arrays.values()))

    def restore(self, id: str) -> None:
        assert self._lot is not None, "nothing has been saved here"
        self._lot.restore(id)

    def landings(self) -> list[Landing]:
        return [] if self._lot is None else [self._landing(one) for one in self._lot.landed()]

    def _landing(self, one: Landed[mx.array]) -> Landing:
        ticket = one.ticket
        if not ticket.dropped and (one.failure is not None or one.lane is Lane.RESTORE):
            kept = self._kept.pop(ticket.id)
            if one.failure is None:
                self._adopt(ticket.id, kept, one.arrays)
        return Landing(ticket.id, one.lane, ticket.size_bytes, one.seconds, one.failure)

    def _adopt(self, id: str, kept: Kept, arrays: dict[str, mx.array]) -> None:
        ours = {name: one for name, one in arrays.items() if not name.startswith(OF_HEAD)}
        self._forward.restore(id, Image(ours, kept.marks))
        of_head = {name.removeprefix(OF_HEAD): one for name, one in arrays.items() if name.startswith(OF_HEAD)}
        self._drafting.restore(id, Image(of_head, kept.drafter_marks))
        if kept.token is not None:
            self._ahead.append(Launch(mx.array([kept.token]), {id: 0}))

    def _take_ahead(self, ids: Collection[str]) -> list[Launch]:
        """What has been begun for these; what has been begun for others stays."""
        apart = [one.apart(ids) for one in self._ahead]
        self._ahead = [others for _, others in apart if others.rows]
        return [ours for ours, _ in apart if ours.rows]

    def release(self, id: str) -> None:
        self._forward.release(id)
        self._samplers.pop(id, None)
        self._drafting.release(id)
        self._take_ahead({id})
        if self._lot is not None and self._kept.pop(id, None) is not None:
            self._lot.drop(id)

    def memory(self) -> BackendMemory:
        return BackendMemory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def clear_cache(self) -> None:
        mx.clear_cache()

    def limit(self, size_bytes: int, cache_bytes: int) -> None:
        """Beyond it MLX first frees its cache and then allocates all the same."""
        mx.set_memory_limit(size_bytes)
        mx.set_cache_limit(min(cache_bytes, CACHE_LIMIT_BYTES))
        self._wired_bytes = wired_limit(size_bytes)
        wire(self._wired_bytes)

    def rest(self, resting: bool) -> None:
        if resting:
            mx.clear_cache()
        wire(0 if resting else self._wired_bytes)

    def close(self) -> None:
        for id in list(self._samplers):
            self.release(id)
        if self._lot is not None:
            self._lot.close()
        mx.clear_cache()

    def _launch(self, rows: Sequence[Row], tokens: mx.array) -> list[Launch]:
        """Begins a step of one position for each of these rows, fed `tokens` [B]; returns without waiting for it."""
        by_id = {row.id: row for row in rows}
        samplers = self._drawing(rows)
        passes = self._forward.decode([*by_id], tokens, [1] * len(rows))
        launches = []
        for done in passes:
            draws = [(samplers[id], by_id[id].position) for id in done.ids]
            drawn = _with_known(self._draw(done.logits, draws), done, by_id)
            self._ask(done, drawn, draws)
            self._tell_drafter(done, drawn, done.widths)
            launches.append(Launch(drawn, {id: row for row, id in enumerate(done.ids)}))
        asked = [array for one in self._asked for array in one.arrays]
        mx.async_eval(*(one.tokens for one in launches), *asked, *self._forward.arrays([*by_id]))
        return launches

    def _drafted(self, rows: Sequence[Row]) -> mx.array | None:
        """[N, longest] guesses for the rows that are to have some; None where there are none."""
        wanted = [row for row in rows if row.drafts]
        if not wanted:
            return None
        begun = time.perf_counter()
        drafts = self._drafting.draft([row.id for row in wanted], max(row.drafts for row in wanted))
        self.draft_seconds.draft += time.perf_counter() - begun
        return drafts

    def _verify(self, rows: Sequence[Row], drafts: mx.array) -> dict[str, Run]:
        """A step in which each row is fed its token and its drafts at once. Every token is drawn from the trunk's own
        logits at its own position; those behind a draft that was wrong are dropped, with all that they left behind."""
        begun = time.perf_counter()
        by_id = {row.id: row for row in rows}
        samplers = self._drawing(rows)
        verification = Verification(rows, drafts)
        passes = self._forward.decode([*by_id], verification.tokens, verification.widths)
        tokens = []
        for done in passes:
            draws = verification.draws(done.ids, samplers)
            drawn = _with_known(self._draw(done.logits, draws), done, by_id)
            self._ask(done, drawn, draws)
            tokens.append(drawn)
        mx.async_eval(tokens, *(one.arrays for one in self._asked))
        runs: dict[str, Run] = {}
        for done, drawn in zip(passes, tokens, strict=True):
            runs |= verification.runs(done.ids, integers(drawn))
        verified = time.perf_counter()
        lengths = {id: len(run.tokens) for id, run in runs.items()}
        self._forward.keep(passes, lengths)
        for done, drawn in zip(passes, tokens, strict=True):
            self._tell_drafter(done, drawn, [lengths[id] for id in done.ids])
        self.draft_seconds.verify += verified - begun
        self.draft_seconds.bookkeeping += time.perf_counter() - verified
        return runs

    def _ask(self, done: Pass, drawn: mx.array, draws: Sequence[tuple[Sampler, int]]) -> None:
        """For the probabilities that the sequences of a pass are to be told."""
        if not any(sampler.sampling.logprobs is not None for sampler, _ in draws):
            return
        owners = [id for id, width in zip(done.ids, done.widths, strict=True) for _ in range(width)]
        samplers = [sampler for sampler, _ in draws]
        if self._exact is None:
            self._asked.append(Logprobs(owners, done.logits, drawn, samplers))
            return
        for row, (owner, sampler) in enumerate(zip(owners, samplers, strict=True)):  # whoever else asks, one at a time
            self._asked.append(Logprobs([owner], done.logits[row : row + 1], drawn[row : row + 1], [sampler]))

    def _draw(self, logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> mx.array:
        if self._observer is not None:
            self._observer(logits, draws)
        return (self._sample if self._exact is None else self._exact.sample)(logits, draws)

    def _drawing(self, rows: Sequence[Row]) -> dict[str, Sampler]:
        """Nothing is drawn where the token is known: that draw is nobody's."""
        return {row.id: self._samplers[row.id] if row.known is None else NOBODY for row in rows}

    def _tell_drafter(self, done: Pass, drawn: mx.array, kept: Sequence[int]) -> None:
        """Which of a pass's positions stand, and what was drawn at them [R]."""
        if self._drafting.drafter is None or done.hidden is None:
            return
        begin = 0
        for id, width, count in zip(done.ids, done.widths, kept, strict=True):
            self._drafting.note(id, Pairs(done.hidden, drawn, begin, begin + count))
            begin += width

    def _note(self, id: str, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._samplers[id].note(token)


def _with_known(drawn: mx.array, done: Pass, rows: Mapping[str, Row]) -> mx.array:
    """What a pass drew [R], with the tokens that are known in the place of those drawn again."""
    if all(rows[id].known is None for id in done.ids):
        return drawn
    begins = dict(zip(done.ids, accumulate([0, *done.widths]), strict=False))
    known = {begins[id]: told for id in done.ids if (told := rows[id].known) is not None}
    kept = mx.array([row not in known for row in range(drawn.shape[0])])
    return mx.where(kept, drawn, mx.array([known.get(row, 0) for row in range(drawn.shape[0])]))


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
