"""A head that raises while it drafts takes no answer with it: tokens and logits are those without drafts, bit for bit,
of those that were drafted for and of their neighbours, and nobody drafts any more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.drafter import Drafter
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.lane_cost import lanes_of
from provider.backends.mlx.mtp_head import MtpHead
from provider.backends.mlx.mtp_weights import load_head
from provider.generation import Sampling
from provider.heads import attach_head, choose_head, still_active
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.artifact import inspect_inline_head
from provider.mtp.controller import FixedDepth
from provider.mtp.head import HeadArtifact
from provider.pipe import DraftSpec, DraftStatus
from tests.fixtures.drafters import Raising, RaisingLayer
from tests.fixtures.exact_play import Answer, Chat, Log, Setting, alone, differing, play
from tests.soak import SOAK

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
CHATS = [
    Chat("greedy", TOKENIZER.encode("1, 2, 3, 4,"), 10, Sampling(temperature=0)),
    Chat("seeded", TOKENIZER.encode("one two one two"), 8, Sampling(temperature=0.8, seed=7), joins=2),
    Chat("looks back", TOKENIZER.encode("a b c"), 7, Sampling(temperature=0, repetition_penalty=1.2), joins=3),
]
LAYERS = [("input_layernorm", 1), ("input_layernorm", 9), ("norm", 2)]
"""Of a head, and at which call: one is called for prompts too, the other last, with keys and values appended."""
METHODS = ["note", "begin", "draft", "park"]
if SOAK:
    LAYERS = [(layer, at) for layer in ("input_layernorm", "norm") for at in (1, 2, 3, 4, 5, 6, 9, 12)]
    METHODS += ["open", "prefilled", "start", "arrays", "restore", "release"]
AUTO = DraftSpec(mode="auto", killed=False, declaration="declared", model_type="qwen3_5")


@pytest.fixture(scope="module")
def backend() -> Iterator[MlxBackend]:
    made = MlxBackend(BUNDLED_MODEL_DIR)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plainly(backend: MlxBackend) -> dict[str, Answer]:
    return alone(backend, CHATS)


def sound(backend: MlxBackend) -> MtpHead:
    return head_of(backend, inspect_inline_head(BUNDLED_MODEL_DIR))


def head_of(backend: MlxBackend, artifact: HeadArtifact, layer: str | None = None, at: int = 0) -> MtpHead:
    """One whose layer of that name raises at its `at`-th call."""
    assert isinstance(backend._forward, Hybrid)
    trunk = backend._forward.trunk
    modules = load_head(artifact, trunk.args)
    if layer == "norm":
        modules.norm = RaisingLayer(modules.norm, at)
    elif layer is not None:
        modules.block.input_layernorm = RaisingLayer(modules.block.input_layernorm, at)
    return MtpHead(modules, trunk, artifact.max_drafts)


def played(backend: MlxBackend, drafter: Drafter, copies: Path, exact: bool = False) -> tuple[dict[str, Answer], Log]:
    """With two drafts in every row, each chat parked after every three tokens, and its state copied out and back."""
    backend.draft_with(drafter)
    backend.decode_in_lanes(lanes_of(backend, 4) if exact else None)
    told = play(backend, CHATS, Setting(depth=FixedDepth(2), every=3, copies=copies))
    backend.decode_in_lanes(None)
    assert not backend._samplers
    assert backend.drafter is None
    assert backend.facts.max_drafts == 0
    return told


@pytest.mark.parametrize(("layer", "at"), LAYERS)
def test_whatever_layer_raises_at_whatever_call(
    backend: MlxBackend, plainly: dict[str, Answer], tmp_path: Path, layer: str, at: int
) -> None:
    drafter = head_of(backend, inspect_inline_head(BUNDLED_MODEL_DIR), layer, at)
    answers, log = played(backend, drafter, tmp_path)
    assert differing(answers, plainly) == []
    assert answers.keys() == plainly.keys()
    assert log.parks > 0
    assert backend.draft_failure == "FloatingPointError: the head has failed"


@pytest.mark.parametrize("method", METHODS)
def test_whatever_it_is_asked_when_it_raises(
    backend: MlxBackend, plainly: dict[str, Answer], tmp_path: Path, method: str
) -> None:
    drafter = Raising(sound(backend), method, at=2)
    answers, log = played(backend, drafter, tmp_path)
    assert differing(answers, plainly) == []
    assert answers.keys() == plainly.keys()
    assert log.deepest == 2
    assert backend.draft_failure == f"ArithmeticError: {method} has failed"


def test_in_lanes_too(backend: MlxBackend, tmp_path: Path) -> None:
    backend.decode_in_lanes(lanes_of(backend, 4))
    expected = alone(backend, CHATS)
    backend.decode_in_lanes(None)
    drafter = head_of(backend, inspect_inline_head(BUNDLED_MODEL_DIR), "norm", at=5)
    answers, log = played(backend, drafter, tmp_path, exact=True)
    assert differing(answers, expected) == []
    assert (answers.keys(), log.deepest) == (expected.keys(), 2)


def test_a_head_that_raises_in_the_self_check_is_dismissed(
    backend: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adopt(artifact: HeadArtifact) -> None:
        backend.draft_with(head_of(backend, artifact, "norm", at=3))

    monkeypatch.setattr(backend, "adopt", adopt)
    status = attach_head(backend, choose_head(BUNDLED_MODEL_DIR, AUTO), TOKENIZER.encode)
    assert (status.active, status.reason) == (False, "assistant_load_failed")
    assert "FloatingPointError: the head has failed" in (status.detail or "")
    assert (backend.drafter, backend.draft_failure) == (None, None)


def test_a_head_that_fails_after_its_self_check_and_before_anybody_is_served_is_told_of(
    backend: MlxBackend, tmp_path: Path
) -> None:
    active = DraftStatus(active=True, block_size=3)
    backend.draft_with(None)
    assert still_active(backend, active) == active
    played(backend, head_of(backend, inspect_inline_head(BUNDLED_MODEL_DIR), "norm", at=1), tmp_path)
    status = still_active(backend, active)
    assert (status.active, status.reason) == (False, "engine_inactive")
    assert "(FloatingPointError: the head has failed)" in (status.detail or "")


@pytest.mark.parametrize(("rows", "drafts"), [(1, 0), (2, 1), (4, 2)])
def test_lanes_bound_the_drafts_and_without_room_for_any_the_head_counts_as_off(
    backend: MlxBackend, rows: int, drafts: int
) -> None:
    active = DraftStatus(active=True, block_size=3)
    backend.draft_with(sound(backend))
    backend.decode_in_lanes(lanes_of(backend, rows))
    found, status = backend.facts.max_drafts, still_active(backend, active)
    backend.decode_in_lanes(None)
    backend.draft_with(None)
    assert (found, status.active) == (drafts, drafts > 0)
    assert status.active or (status.reason, status.detail) == (
        "engine_inactive",
        "exact mode decodes in lanes of 1 row, which have no room for drafts",
    )
