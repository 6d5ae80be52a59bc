"""Copies of the bundled model with one file broken: one clear error each, and the provider's other models go on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.catalog import LocalFiles
from provider.config import EngineSection, ProviderConfig, ProviderSection
from provider.doctor import judge_model, read_model_facts
from provider.errors import ModelError, ModelNotFound
from provider.findings import Status
from provider.memory.caps import GIB
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.residency import Residency

SHARD, INDEX, CONFIG = "model-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"
Break = Callable[[Path], object]

UNREADABLE: dict[str, tuple[str, Break]] = {
    "an index that is not JSON": (INDEX, lambda to: (to / INDEX).write_text('{"weight_map": ')),
    "an index without a map": (INDEX, lambda to: (to / INDEX).write_text("[]")),
    "a shard cut in its header": (SHARD, lambda to: cut(to / SHARD, 1000)),
    "a shard cut in its tensors": (SHARD, lambda to: cut(to / SHARD, -5000)),
    "an empty shard": (SHARD, lambda to: cut(to / SHARD, 0)),
    "a missing shard": (SHARD, lambda to: (to / SHARD).unlink()),
    "a config that is not JSON": (CONFIG, lambda to: (to / CONFIG).write_text("{")),
    "a dimension of a wrong type": (CONFIG, lambda to: say(to, hidden_size="128")),
    "more layers than can be": (CONFIG, lambda to: say(to, num_hidden_layers=2**70)),
    "a tokenizer that is not JSON": ("tokenizer.json", lambda to: (to / "tokenizer.json").write_text("{")),
    "no tokenizer": ("tokenizer.json", lambda to: (to / "tokenizer.json").unlink()),
}
"""Told before anything is loaded. The file, and how it is broken."""
UNFIT: dict[str, Break] = {
    "a size that the weights do not have": lambda to: say(to, hidden_size=64),
    "a number in words": lambda to: say(to, rms_norm_eps="small"),
    "a number in words that is used late": lambda to: say(to, rope_parameters={"rope_theta": "large"}),
}
"""Told when it is loaded."""


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def say(to: Path, **text: Any) -> None:
    config = json.loads((to / CONFIG).read_text())
    config["text_config"] |= text
    (to / CONFIG).write_text(json.dumps(config))


def copied(to: Path, breaks: Break) -> Path:
    shutil.copytree(BUNDLED_MODEL_DIR, to)
    breaks(to)
    return to


def residency(*models: str) -> Residency:
    config = ProviderConfig(ProviderSection(), EngineSection(), models, coordinators=(), data_dir=Path("/nowhere"))
    return Residency(config, 8 * GIB)


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_file_that_cannot_be_used_is_named_with_the_fix(what: str, tmp_path: Path) -> None:
    file, breaks = UNREADABLE[what]
    directory = copied(tmp_path / "broken", breaks)
    with pytest.raises(ModelError) as caught:
        LocalFiles().find(str(directory))
    finding = judge_model(read_model_facts(str(directory), "no configuration"))
    assert finding.status is Status.FAIL
    for said in (str(caught.value), finding.message):
        assert str(directory) in said
        assert file in said
        assert "download the model again" in said or f"add its {file}" in said
    assert finding.fix


@pytest.mark.parametrize("what", UNFIT)
def test_files_of_which_no_model_can_be_made_are_one_line(what: str, tmp_path: Path) -> None:
    directory = copied(tmp_path / "unfit", UNFIT[what])
    with pytest.raises(ModelError, match=r"its config\.json and its weights \(.*\): download") as caught:
        MlxBackend(directory)
    assert str(caught.value).startswith(f"{directory}: ")
    assert "\n" not in str(caught.value)


def test_a_broken_model_does_not_keep_the_others_from_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = str(copied(tmp_path / "broken", lambda to: (to / SHARD).unlink()))
    both = residency(broken, BUNDLED_MODEL_ID)
    assert both.advertised_ids == [BUNDLED_MODEL_ID]
    assert both.last_load_error is not None
    assert both.last_load_error.model == broken
    assert SHARD in both.last_load_error.message
    assert any(SHARD in record.message for record in caplog.records)
    with pytest.raises(ModelError, match=SHARD):
        residency(broken)
    with pytest.raises(ModelNotFound):
        residency(str(tmp_path / "nowhere"), BUNDLED_MODEL_ID)
