"""Embedded heads of every kind: loaded, they change no answer, and know of a sequence what a fresh look at it tells."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from provider.backends.base import Row, Run
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.mtp_head import MISSED_PAIRS, Followed, MtpHead
from provider.backends.mlx.mtp_weights import load_head
from provider.mtp.artifact import inspect_inline_head
from tests.contract.test_drafts import FOUR_BITS, LENGTHS, PROMPTS, SAMPLING
from tests.fixtures.backend_play import prefill, prompt_of, solo, staggered
from tests.fixtures.drafters import pairs_of
from tests.fixtures.family_models import write_family
from tests.fixtures.head_models import add_head, demo_with_head

EIGHT_BITS = {"group_size": 32, "bits": 8, "mode": "affine"}
MXFP8 = {"group_size": 32, "bits": 8, "mode": "mxfp8"}
BF16 = mx.bfloat16

HEADS: dict[str, Callable[[Path], Path]] = {
    "demo float32": lambda to: demo_with_head(to, "float32"),
    "demo bfloat16": lambda to: demo_with_head(to, "bfloat16"),
    "dense float32": lambda to: add_head(write_family(to, "qwen3_5")),
    "dense bfloat16": lambda to: add_head(write_family(to, "qwen3_5", BF16), BF16),
    "dense 4-bit": lambda to: add_head(write_family(to, "qwen3_5", BF16, FOUR_BITS), BF16, FOUR_BITS),
    "dense, head mxfp8": lambda to: add_head(write_family(to, "qwen3_5", BF16), BF16, MXFP8),
    "experts float32": lambda to: add_head(write_family(to, "qwen3_5_moe")),
    "experts float32 fused": lambda to: add_head(write_family(to, "qwen3_5_moe"), fused=True),
    "experts 4-bit, head 8-bit": lambda to: add_head(
        write_family(to, "qwen3_5_moe", quantize=FOUR_BITS), mx.float32, EIGHT_BITS
    ),
}
COUNTS = {id: 4 + int(id) // 2 for id in PROMPTS}


@pytest.fixture(scope="module", params=HEADS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return HEADS[request.param](tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def backend(directory: Path) -> MlxBackend:
    made = MlxBackend(directory)
    made.adopt(inspect_inline_head(directory))
    return made


@pytest.fixture(scope="module")
def plain(backend: MlxBackend) -> dict[str, list[int]]:
    return {id: solo(backend, PROMPTS[id], COUNTS[id], SAMPLING[id]) for id in PROMPTS}


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_eight_that_join_and_leave_draw_the_tokens_they_draw_alone_without_a_head(
    backend: MlxBackend, plain: dict[str, list[int]], depth: int
) -> None:
    depth = min(depth, backend.facts.max_drafts)
    assert staggered(backend, PROMPTS, COUNTS, sampling=SAMPLING, drafts=lambda step, id: depth) == plain


def test_rows_with_and_without_drafts_and_steps_without_any_follow_each_other(
    backend: MlxBackend, plain: dict[str, list[int]]
) -> None:
    most = backend.facts.max_drafts

    def wanted(step: int, id: str) -> int:
        return (step + int(id)) % (most + 1) if step % 5 > 1 else 0

    assert staggered(backend, PROMPTS, COUNTS, [1], SAMPLING, wanted) == plain


def test_a_head_guesses_the_same_alone_and_beside_others(backend: MlxBackend) -> None:
    """Its keys and values follow the sequence alone: neither neighbours nor cuts of the prompt change a guess."""
    prompts = {str(n): prompt_of(length, n) for n, length in enumerate(LENGTHS[:4])}
    alone = {id: runs_of(backend, {id: prompt}) for id, prompt in prompts.items()}
    assert runs_of(backend, prompts, cuts=[1]) == {id: runs[id] for id, runs in alone.items()}


def runs_of(backend: MlxBackend, prompts: dict[str, list[int]], cuts: Sequence[int] = ()) -> dict[str, list[Run]]:
    tokens = {id: [prefill(backend, id, prompt, cuts=cuts)] for id, prompt in prompts.items()}
    runs: dict[str, list[Run]] = {id: [] for id in prompts}
    for _ in range(8):
        rows = [Row(id, drawn[-1], len(drawn), 2) for id, drawn in tokens.items()]
        for row, run in zip(rows, backend.decode(rows, ahead=True), strict=True):
            runs[row.id].append(run)
            tokens[row.id] += run.tokens
    for id in prompts:
        backend.release(id)
    return runs


def test_what_a_head_holds_after_rounds_is_what_a_fresh_look_at_the_tokens_gives(backend: MlxBackend) -> None:
    """Rejected guesses, and pairs appended with the head's own hidden states, have left nothing behind."""
    prompt = prompt_of(20, 5)
    tokens = [prefill(backend, "a", prompt)]
    for drafts in (1, 2, 0, 2, 0, 0, 1, 2, 2):
        drafts = min(drafts, backend.facts.max_drafts)
        tokens += backend.decode([Row("a", tokens[-1], len(tokens), drafts)])[0].tokens
    head = head_of(backend)
    head.begin(["a"])
    prefill(backend, "b", [*prompt, *tokens[:-1]])
    head.start("b", tokens[-1])
    head.begin(["b"])
    seen, fresh = ([one[..., : cache.offset, :] for one in cache.arrays] for cache in caches(head, "a", "b"))
    for one, other in zip(seen, fresh, strict=True):
        assert one.shape == other.shape == (1, 2, len(prompt) + len(tokens) - 1, 32)
        assert mx.allclose(one.astype(mx.float32), other.astype(mx.float32), rtol=0.05, atol=0.05)
    for id in "ab":
        backend.release(id)


def test_a_head_is_counted_in_what_a_sequence_and_the_model_hold(directory: Path, backend: MlxBackend) -> None:
    trunk, artifact = MlxBackend(directory).facts, inspect_inline_head(directory)
    assert backend.facts.kv_bytes_per_token == trunk.kv_bytes_per_token + artifact.kv_bytes_per_token
    assert backend.facts.weight_bytes == trunk.weight_bytes + artifact.payload_bytes
    assert backend.facts.max_drafts == artifact.max_drafts


def test_nothing_is_left_when_all_have_gone(backend: MlxBackend) -> None:
    head = head_of(backend)
    assert not head._followed
    assert not head._ready


def test_norms_shifted_once_too_often_are_refused(directory: Path) -> None:
    artifact = inspect_inline_head(directory)
    trunk = hybrid_of(MlxBackend(directory)).trunk
    with pytest.raises(ValueError, match=r"mean of (1\.9|2)"):
        load_head(replace(artifact, shift_norms=True), trunk.args)


def test_a_tensor_too_many_is_refused(directory: Path) -> None:
    artifact = inspect_inline_head(directory)
    trunk = hybrid_of(MlxBackend(directory)).trunk
    tensors = {**artifact.tensors, "extra.weight": next(iter(artifact.tensors.values()))}
    with pytest.raises(ValueError, match="extra"):
        load_head(replace(artifact, tensors=tensors), trunk.args)


def test_no_more_pairs_are_kept_for_a_head_than_it_is_to_catch_up_with() -> None:
    one = Followed()
    for width in (3, 1, 40, 1, 2, 7):
        one.note(pairs_of(width))
        kept = [pairs.end - pairs.begin for pairs in one.pending]
        assert sum(kept) <= MISSED_PAIRS
        assert kept[-1] == min(width, MISSED_PAIRS)
        assert all(pairs.end == pairs.tokens.shape[0] for pairs in one.pending)
    assert kept == [6, 1, 2, 7]


def head_of(backend: MlxBackend) -> MtpHead:
    assert isinstance(backend.drafter, MtpHead)
    return backend.drafter


def hybrid_of(backend: MlxBackend) -> Hybrid:
    assert isinstance(backend._forward, Hybrid)
    return backend._forward


def caches(head: MtpHead, *ids: str) -> list[Any]:
    return [head._followed[id].cache for id in ids]
