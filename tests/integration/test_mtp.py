"""The bundled model's head: how often it is right, what becomes of a bad one, and what users see of either."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import mlx.core as mx
import msgspec
import pytest
from mlx.utils import tree_flatten

from provider.backends.base import Row
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.mtp_head import MtpHead
from provider.backends.mlx.mtp_weights import HeadModules, load_head
from provider.heads import attach_head, choose_head
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.artifact import inspect_inline_head
from provider.mtp.policy import Off
from provider.mtp.smoke import LEAST_ACCEPTANCE, smoke_acceptance, smoke_prompts
from provider.mtp.tensors import NORMS
from provider.pipe import DraftSpec
from tests.fixtures.backend_play import prefill, solo
from tests.fixtures.family_models import write_family
from tests.fixtures.head_models import add_head, demo_with_head
from tests.integration.client import Api
from tests.integration.slots import ask, collect, demo_slot
from tests.integration.test_local import local
from tests.soak import SOAK
from tools.demo_repertoire import EXAMPLES, TRAINING_SEED, Example

SEED = 20_260_707
TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
AUTO = DraftSpec(mode="auto", killed=False, declaration="declared", model_type="qwen3_5")
Break = Callable[[Path], None]


def repertoire(each: int) -> list[Example]:
    """Prompts of every skill that training did not draw."""
    assert SEED != TRAINING_SEED
    random = Random(SEED)
    return [make(random) for make in EXAMPLES.values() for _ in range(each)]


@pytest.fixture(scope="module")
def backend() -> MlxBackend:
    made = MlxBackend(BUNDLED_MODEL_DIR)
    made.adopt(inspect_inline_head(BUNDLED_MODEL_DIR))
    return made


def test_one_draft_a_round_is_right_85_times_in_100_on_what_the_model_was_taught(backend: MlxBackend) -> None:
    drafted = accepted = 0
    for example in repertoire(each=2):
        tokens = [prefill(backend, "a", TOKENIZER.encode(example.prompt))]
        while len(tokens) < 120 and not TOKENIZER.eos_token_ids & set(tokens):
            (run,) = backend.decode([Row("a", tokens[-1], len(tokens), 1)], ahead=True)
            tokens += run.tokens
            drafted += run.drafted
            accepted += run.accepted
        backend.release("a")
    assert drafted > 100
    assert accepted / drafted >= 0.85


class Swapped(HeadModules):
    """The hidden state before the embedding."""

    def mix(self, embeddings: mx.array, hidden: mx.array) -> mx.array:
        both = [self.pre_fc_norm_hidden(hidden), self.pre_fc_norm_embedding(embeddings)]
        return self.fc(mx.concatenate(both, axis=-1))


def shifted(head: HeadModules, by: float) -> None:
    weights = dict(tree_flatten(head.parameters()))
    head.load_weights([(f"{norm}.weight", weights[f"{norm}.weight"] + by) for norm in NORMS], strict=False)


def randomised(head: HeadModules) -> None:
    mx.random.seed(3)
    matrices = [(name, one) for name, one in tree_flatten(head.parameters()) if one.ndim > 1]
    head.load_weights(
        [(name, mx.random.normal(one.shape).astype(one.dtype) * 0.05) for name, one in matrices], strict=False
    )


def swapped(head: HeadModules) -> None:
    head.__class__ = Swapped


FAULTS: dict[str, Callable[[HeadModules], None]] = {
    "raw norms": lambda head: shifted(head, -1.0),
    "random weights": randomised,
    "inputs swapped": swapped,
}


def self_checked(fault: Callable[[HeadModules], None]) -> float:
    backend = MlxBackend(BUNDLED_MODEL_DIR)
    assert isinstance(backend._forward, Hybrid)
    trunk = backend._forward.trunk
    head = load_head(inspect_inline_head(BUNDLED_MODEL_DIR), trunk.args)
    fault(head)
    backend.draft_with(MtpHead(head, trunk, 2))
    return smoke_acceptance(backend, smoke_prompts(TOKENIZER.encode))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_self_check_tells_a_head_that_computes_the_wrong_thing(fault: str) -> None:
    assert self_checked(FAULTS[fault]) < LEAST_ACCEPTANCE


def test_the_self_check_passes_a_sound_head_and_leaves_nothing_behind(backend: MlxBackend) -> None:
    plain = solo(backend, TOKENIZER.encode("1, 2, 3,"), 12)
    assert smoke_acceptance(backend, smoke_prompts(TOKENIZER.encode)) >= 0.6
    assert not backend._samplers
    assert solo(backend, TOKENIZER.encode("1, 2, 3,"), 12, drafts=2) == plain


def test_a_head_that_is_never_right_is_dismissed_and_the_model_serves_without_it(tmp_path: Path) -> None:
    directory = add_head(write_family(tmp_path, "qwen3_5"))
    backend = MlxBackend(directory)
    without = backend.facts
    status = attach_head(backend, choose_head(directory, AUTO), TOKENIZER.encode)
    assert (status.active, status.reason) == (False, "acceptance_too_low")
    assert status.detail is not None
    assert str(directory) in status.detail
    assert backend.facts == without
    assert len(solo(backend, [1, 2, 3], 5)) == 5


def rewritten(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_head_whose_config_has_changed_since_it_was_looked_at_is_refused(tmp_path: Path) -> None:
    directory = demo_with_head(tmp_path / "demo", "float32")
    backend = MlxBackend(directory)
    head = choose_head(directory, AUTO)
    rewritten(directory, mtplx_mtp={"included": True, "block_size": 2})
    status = attach_head(backend, head, TOKENIZER.encode)
    assert (status.active, status.reason) == (False, "inline_artifact_invalid")
    rewritten(directory, mtplx_mtp={"included": False})  # between the provider's one probe and the worker's load
    status = attach_head(backend, choose_head(directory, AUTO), TOKENIZER.encode)
    assert (status.active, status.reason) == (False, "inline_artifact_invalid")
    assert backend.facts.max_drafts == 0


def test_whatever_loading_raises_turns_drafting_off_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MlxBackend(BUNDLED_MODEL_DIR)

    def fails(artifact: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(backend, "adopt", fails)
    status = attach_head(backend, choose_head(BUNDLED_MODEL_DIR, AUTO), TOKENIZER.encode)
    assert (status.active, status.reason) == (False, "assistant_load_failed")
    assert status.detail is not None
    assert "no such kernel" in status.detail


def test_the_kill_switch_and_the_mode_leave_the_head_alone() -> None:
    for spec, reason in (
        (msgspec.structs.replace(AUTO, killed=True), "kill_switch_disabled"),
        (msgspec.structs.replace(AUTO, mode="off"), "config_disabled"),
        (None, "engine_inactive"),
    ):
        choice = choose_head(BUNDLED_MODEL_DIR, spec)
        assert isinstance(choice, Off)
        assert choice.reason == reason


def test_a_head_in_a_directory_of_its_own_is_drafted_with(tmp_path: Path, backend: MlxBackend) -> None:
    trunk, head = tmp_path / "trunk", tmp_path / "head"
    shutil.copytree(BUNDLED_MODEL_DIR, trunk, ignore=shutil.ignore_patterns("mtp-*", "*.index.json"))
    head.mkdir()
    shutil.copy(BUNDLED_MODEL_DIR / "mtp-00001.safetensors", head)
    rewritten(trunk, mtplx_mtp=None)
    spec = DraftSpec(mode="on", killed=False, declaration="absent", model_type="qwen3_5", drafter_path=str(head))
    other = MlxBackend(trunk)
    status = attach_head(other, choose_head(trunk, spec), TOKENIZER.encode)
    assert (status.active, status.block_size) == (True, 3)
    prompt = TOKENIZER.encode("1, 2, 3,")
    assert solo(other, prompt, 30, drafts=2) == solo(backend, prompt, 30)
    missing = msgspec.structs.replace(spec, drafter_path=str(tmp_path / "nowhere"))
    off = choose_head(trunk, missing)
    assert isinstance(off, Off)
    assert off.reason == "local_artifact_invalid"


def without_the_shard(directory: Path) -> None:
    (directory / "mtp-00001.safetensors").unlink()


def cut_short(directory: Path) -> None:
    path = directory / "mtp-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def too_many_layers(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    rewritten(directory, text_config={**config["text_config"], "mtp_num_hidden_layers": 2})


@pytest.mark.parametrize("broken", [without_the_shard, cut_short, too_many_layers], ids=lambda one: one.__name__)
def test_a_model_with_a_broken_head_loads_serves_and_says_why(tmp_path: Path, broken: Break) -> None:
    directory = tmp_path / "demo"
    shutil.copytree(BUNDLED_MODEL_DIR, directory)
    broken(directory)

    async def play() -> None:
        async with demo_slot(directory, drafts=AUTO) as slot:
            assert slot.loaded is not None
            assert (slot.loaded.drafts.active, slot.loaded.drafts.reason) == (False, "inline_artifact_invalid")
            assert slot.loaded.drafts.detail
            text, _, end = await collect(slot, ask("Count from 3 to 12.", "a"))
            assert text.startswith("3, 4, 5, 6")
            assert (end.accepted, end.rejected) == (0, 0)

    asyncio.run(play())


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """As it comes: nothing is configured."""
    with local(tmp_path_factory.mktemp("drafting")) as (_, api):
        yield api


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with local(tmp_path_factory.mktemp("plain"), "--mtp-mode", "off") as (_, api):
        yield api


def test_over_http_every_prompt_gets_accepted_drafts_and_the_answer_it_gets_without(drafting: Api, plain: Api) -> None:
    for example in repertoire(each=2 if SOAK else 1):
        body = {
            "model": "darkbloom-demo",
            "messages": [{"role": "user", "content": example.question}],
            "tools": example.tools,
            "temperature": 0,
            "max_tokens": 100,
        }
        answers = [
            httpx.post(f"{api.url}/v1/chat/completions", json=body, timeout=60).json() for api in (drafting, plain)
        ]
        told = [(one["choices"][0]["message"]["content"], one["choices"][0]["finish_reason"]) for one in answers]
        assert told[0] == told[1]
        usage, without = (one["usage"] for one in answers)
        details, none = usage.pop("completion_tokens_details"), without.pop("completion_tokens_details")
        assert usage == without
        assert details["accepted_prediction_tokens"] > 0, example.question
        assert (none["accepted_prediction_tokens"], none["rejected_prediction_tokens"]) == (0, 0)


def test_props_and_metrics_say_who_drafts_and_what_came_of_it(drafting: Api, plain: Api) -> None:
    httpx.post(
        f"{drafting.url}/v1/completions", json={"model": "darkbloom-demo", "prompt": "1, 2, 3,", "max_tokens": 30}
    )
    (told,) = httpx.get(f"{drafting.url}/props").json()["models"]
    assert (told["mtp"]["active"], told["mtp"]["reason"], told["mtp"]["block_size"]) == (True, None, 3)
    counts = told["mtp"]["drafted"]
    assert counts["rounds"] == counts["drafted"][0] > 0
    assert 0 < counts["accepted"][0] <= counts["drafted"][0]
    assert counts["verify_s"] > 0
    metrics = httpx.get(f"{drafting.url}/metrics").text
    assert 'darkbloom_mtp_active{model="darkbloom-demo"} 1.0' in metrics
    assert (
        f'darkbloom_mtp_accepted_tokens_total{{depth="1",model="darkbloom-demo"}} {counts["accepted"][0]}.0' in metrics
    )
    (off,) = httpx.get(f"{plain.url}/props").json()["models"]
    assert (off["mtp"]["active"], off["mtp"]["reason"], off["mtp"]["drafted"]) == (False, "config_disabled", None)
    assert 'darkbloom_mtp_active{model="darkbloom-demo"} 0.0' in httpx.get(f"{plain.url}/metrics").text
