"""Exact mode as a worker meets it: on, unavailable with a reason, or a refusal."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.numerics_adversary import NumericsAdversary, moved
from provider.building import build
from provider.config import ProviderConfig, read_config
from provider.engine import Engine
from provider.errors import ExactUnavailable
from provider.exact.policy import Condition, Mode
from provider.exact_check import Question, check, differing
from provider.exact_trial import try_exact
from provider.generation import Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.checkpoint import read_checkpoint
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.policy import Mode as MtpMode
from provider.pipe import DraftSpec, Loaded, LoadSpec
from provider.scheduler.prefilling import SHARED, SOLO
from tests.fixtures.family_models import write_family

CASE_O = "Produce the integers from 1 through 300 in ascending order, separated only by commas"


def load(
    directory: Path = BUNDLED_MODEL_DIR,
    exact: Mode = "on",
    backend: str = "mlx",
    lanes: Path | None = None,
    drafts: MtpMode = "auto",
) -> tuple[Engine, Loaded]:
    probed = read_checkpoint(directory).mtp
    told = DraftSpec(mode=drafts, killed=False, declaration=probed.declaration.value, model_type=probed.model_type)
    spec = LoadSpec(
        backend=backend,
        directory=str(directory),
        max_concurrent=8,
        drafts=told,
        exact=exact,
        lanes_directory=None if lanes is None else str(lanes),
    )
    return build(spec)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("small"), "qwen3_5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def configured(data: Path, **env: str) -> ProviderConfig:
    return read_config({}, data_dir=data, file=data / "none.toml", env=env)


@pytest.fixture(scope="module")
def on(data: Path) -> Iterator[tuple[Engine, Loaded]]:
    loaded = load(lanes=configured(data).lanes_directory)
    yield loaded
    loaded[0].backend.close()


def test_the_bundled_model_is_exact_in_lanes_chosen_by_measurement(on: tuple[Engine, Loaded]) -> None:
    engine, loaded = on
    assert loaded.exact.state == "on"
    assert (loaded.exact.code, loaded.exact.reason) == (None, None)
    assert loaded.exact.lane_rows in (4, 8, 16)  # a lane holds a sequence with both its drafts
    assert loaded.drafts.active
    assert engine.backend.facts.lane_rows == loaded.exact.lane_rows
    assert engine.scheduler.limits.prefilling is SOLO
    assert engine.scheduler.pool.padding_states == engine.backend.facts.padding_states
    assert not engine.busy


def test_rows_are_measured_once_and_kept_for_every_load_after(small: Path, tmp_path: Path) -> None:
    config = configured(tmp_path)
    lanes = config.lanes_directory

    def loaded_with() -> tuple[int | None, str | None]:
        engine, loaded = load(small, lanes=lanes)
        assert engine.backend.facts.lane_rows == loaded.exact.lane_rows
        engine.backend.close()
        return loaded.exact.lane_rows, loaded.exact.lane_rows_from

    rows, source = loaded_with()
    assert source == "measured"
    (file,) = lanes.iterdir()
    told = json.loads(file.read_text())
    assert (told["lane_rows"], told["model"]) == (rows, small.name)
    assert [*told["pass_ms"]] == ["1", "2", "4", "8", "16"]
    assert loaded_with() == (rows, "kept")
    another = 2 if rows != 2 else 4
    file.write_text(json.dumps(told | {"lane_rows": another}))
    assert loaded_with() == (another, "kept"), "it is the file that says so"
    tried = try_exact(str(small), config, False, lambda _: None, 4)
    assert (tried.lane_rows, tried.lane_rows_from) == (another, "kept"), "and doctor --exact asks it too"
    file.unlink()
    assert try_exact(str(small), config, False, lambda _: None, 4).lane_rows_from == "measured"
    assert [*lanes.iterdir()] == [], "a look keeps nothing"
    assert loaded_with()[1] == "measured"


def test_without_drafts_the_lanes_are_those_with_drafts(on: tuple[Engine, Loaded], data: Path) -> None:
    lanes = configured(data).lanes_directory
    [file] = lanes.iterdir()
    told = json.loads(file.read_text())
    assert (told["lane_rows"], told["model"]) == (on[1].exact.lane_rows, BUNDLED_MODEL_ID)
    engine, loaded = load(lanes=lanes, drafts="off")
    candidates = engine.backend.grid.candidates  # type: ignore[attr-defined]  # of an MlxBackend
    engine.backend.close()
    assert not loaded.drafts.active
    assert (loaded.exact.lane_rows, loaded.exact.lane_rows_from) == (told["lane_rows"], "kept")
    assert [str(one) for one in candidates] == [*told["pass_ms"]] == ["4", "8", "16"], (
        "they hold a chat with its drafts"
    )


def test_with_the_mode_off_nothing_changes(small: Path) -> None:
    engine, loaded = load(small, exact="off")
    assert loaded.exact.state == "off"
    assert engine.backend.facts.lane_rows is None
    assert engine.scheduler.limits.prefilling is SHARED
    assert engine.scheduler.pool.padding_states == 0
    engine.backend.close()


def test_one_prompt_has_one_digest_in_every_condition(on: tuple[Engine, Loaded]) -> None:
    """Its three neighbours ask the same; under a device that rounds by the size of its launches."""
    backend: Any = on[0].backend
    prompt = ModelTokenizer(BUNDLED_MODEL_DIR).encode(CASE_O + " 1,2,3,4,5,6,7,8,9,10,11,")
    readings = check(
        backend,
        Question(prompt, [prompt] * 3, 12, Sampling(temperature=0.8, seed=7)),
        list(Condition),
        NumericsAdversary(),
    )
    assert [one.condition for one in readings] == list(Condition)
    assert differing(readings) == []
    for one in readings:
        assert one.widest == (1 if one.condition is Condition.ALONE else 4)
        assert (one.parks > 0) == (one.condition in (Condition.PARKED, Condition.RECOMPUTED))
        assert (one.recomputes > 0) == (one.condition is Condition.RECOMPUTED)
        assert (one.accepted > 0) == (one.condition is Condition.DRAFTED)


def test_without_lanes_the_same_device_gives_other_digests() -> None:
    backend = MlxBackend(BUNDLED_MODEL_DIR)
    prompt = ModelTokenizer(BUNDLED_MODEL_DIR).encode(CASE_O)
    question = Question(prompt, [prompt] * 3, 8, Sampling(temperature=0))
    readings = check(backend, question, (Condition.ALONE, Condition.BESIDE), NumericsAdversary())
    backend.close()
    assert differing(readings) == [Condition.BESIDE]


class Moody(NumericsAdversary):
    """No launch rounds as the one before: nothing can be exact on it."""

    def __init__(self) -> None:
        super().__init__()
        self._launches = count()

    def _moved_product(self, y: mx.array, x: mx.array) -> mx.array:
        return moved(y, ("product", next(self._launches)))


def test_a_device_on_which_a_chat_differs_is_refused_under_on_and_reported_under_auto(small: Path) -> None:
    with Moody(), pytest.raises(ExactUnavailable, match=r"beside three neighbours.*serve it with exact off"):
        load(small)
    with Moody():
        engine, loaded = load(small, exact="auto")
    assert (loaded.exact.state, loaded.exact.code) == ("unavailable", "check_differs")
    assert loaded.exact.lane_rows is None
    assert engine.backend.facts.lane_rows is None
    assert engine.scheduler.limits.prefilling is SHARED
    engine.backend.close()


def test_a_check_that_cannot_be_made_leaves_the_model_to_auto(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*told: Any) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr("provider.exact_check.check", fails)
    engine, loaded = load(small, exact="auto")
    assert (loaded.exact.state, loaded.exact.code) == ("unavailable", "check_failed")
    assert loaded.exact.reason is not None
    assert "the device is gone" in loaded.exact.reason
    engine.backend.close()


def test_experts_that_are_always_sorted_are_refused_by_name(tmp_path: Path) -> None:
    directory = write_family(tmp_path, "qwen3_moe", num_experts=64, num_experts_per_tok=64)
    with pytest.raises(ExactUnavailable, match=r"64 experts.*exact off"):
        load(directory)


def test_a_mixture_has_lanes_in_which_nothing_is_sorted(tmp_path: Path) -> None:
    directory = write_family(tmp_path, "qwen3_moe", num_experts=16, num_experts_per_tok=16)
    engine, loaded = load(directory)
    assert loaded.exact.state == "on"
    assert loaded.exact.lane_rows in (1, 2)
    engine.backend.close()


def test_a_backend_without_lanes_is_refused_under_on_and_reported_under_auto() -> None:
    assert load(exact="off", backend="sim")[1].exact.state == "off"
    assert load(exact="auto", backend="sim")[1].exact.code == "backend_unsupported"
    with pytest.raises(ExactUnavailable, match="exact off"):
        load(backend="sim")
