"""`models list` and `models inspect`, as a shell sees them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from provider.hardware import read_hardware
from provider.local_floors import LocalFloor, device_key, install
from provider.memory.floors import DEFAULT_FLOOR_BYTES, shipped_table
from provider.memory.requirement import padded_weights
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.checkpoint import read_checkpoint
from provider.models.commands import app, readable_bytes
from tests.fixtures.checkpoints import SHAPES, qwen_config, write_model, write_safetensors, write_sharded_model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run(cache: Path, *arguments: str, **env: str | None) -> tuple[int, str]:
    always = {"HF_HUB_CACHE": str(cache), "COLUMNS": "120", "DARKBLOOM_MTP": None}
    result = CliRunner().invoke(app, arguments, env={**always, **env})
    return result.exit_code, result.stdout


def inspect(cache: Path, *arguments: str, **env: str | None) -> tuple[int, dict[str, Any]]:
    code, said = run(cache, "inspect", *arguments, "--json", **env)
    facts: dict[str, Any] = json.loads(said)
    return code, facts


def test_inspecting_the_bundled_model_answers_every_question(cache: Path) -> None:
    code, facts = inspect(cache, BUNDLED_MODEL_ID)

    assert code == 0
    assert {key: facts[key] for key in ("id", "family", "supported", "reason", "problems")} == {
        "id": "darkbloom-demo",
        "family": "qwen3_5",
        "supported": True,
        "reason": None,
        "problems": [],
    }
    assert facts["mtp"] == {
        "declared": "declared",
        "active": True,
        "reason": None,
        "detail": None,
        "head": {
            "block_size": 3,
            "tensors": 15,
            "packed_modules": 0,
            "size_bytes": 394624,
            "kv_bytes_per_token": 256,
        },
    }
    assert (facts["kv_bytes_per_token"], facts["state_bytes"]) == (512, 107520)
    minimum_kv = 8 * (107520 + 4096 * 512)
    floor = shipped_table()[BUNDLED_MODEL_ID]
    assert facts["memory_required_bytes"] == padded_weights(facts["size_bytes"]) + floor + minimum_kv
    assert (facts["smallest_machine_gb"], facts["tight"]) == (8, False)


def needs(cache: Path, model: Path, **env: str | None) -> tuple[int, int, bool]:
    """Floor, smallest machine, tight."""
    _, facts = inspect(cache, str(model), **env)
    minimum_kv = 8 * (facts["state_bytes"] + facts["context_length"] * facts["kv_bytes_per_token"])
    floor = facts["memory_required_bytes"] - padded_weights(facts["size_bytes"]) - minimum_kv
    return floor, facts["smallest_machine_gb"], facts["tight"]


def test_a_model_that_nobody_measured_has_the_default_floor(cache: Path, tmp_path: Path) -> None:
    assert needs(cache, write_model(tmp_path / "model")) == (DEFAULT_FLOOR_BYTES, 16, False)


def test_a_floor_measured_on_this_machine_counts_for_what_cannot_see(cache: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    checkpoint = read_checkpoint(model)
    entry = LocalFloor(
        model="model",
        weight_digest=checkpoint.digest(),
        size_bytes=checkpoint.size_bytes,
        device=device_key(read_hardware()),
        floor_bytes=2**20,
        activation_bytes=1,
        measured_on="2026-11-29",
    )
    install(tmp_path / "data", entry)

    assert needs(cache, model, DARKBLOOM_DATA_DIR=str(tmp_path / "data")) == (2**20, 8, False)
    assert needs(cache, model, DARKBLOOM_DATA_DIR=str(tmp_path / "none")) == (DEFAULT_FLOOR_BYTES, 16, False)
    raised = {"DARKBLOOM_DATA_DIR": str(tmp_path / "data"), "DARKBLOOM_ACTIVATION_RESERVE_GB": "13.9"}
    assert needs(cache, model, **raised)[1:] == (18, True)


def test_a_model_that_sees_images_has_the_default_floor_whatever_its_id(cache: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "gpt-oss-20b", {**qwen_config(), "vision_config": {}})
    assert needs(cache, model)[0] == shipped_table()["gpt-oss-20b"]

    write_safetensors(model / "model.safetensors", {**SHAPES, "vision_tower.patch": ("BF16", [4])})
    assert needs(cache, model)[0] == DEFAULT_FLOOR_BYTES


def test_a_broken_model_is_described_as_far_as_it_goes_and_fails(cache: Path, tmp_path: Path) -> None:
    model = write_sharded_model(tmp_path / "model")
    (model / "model-00001-of-00002.safetensors").unlink()
    code, facts = inspect(cache, str(model))

    assert code == 1
    assert "model-00001-of-00002.safetensors is missing" in facts["problems"][0]
    assert (facts["context_length"], facts["size_bytes"], facts["supported"]) == (512, None, False)


def test_a_model_with_an_unreadable_config_still_gets_an_answer(cache: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (model / "config.json").write_text("{")
    code, facts = inspect(cache, str(model))

    assert code == 1
    mtp = facts["mtp"]
    assert (mtp["declared"], mtp["reason"]) == ("undeterminable", "inline_artifact_invalid")
    assert "config.json" in mtp["detail"]
    assert "config.json" in facts["problems"][0]


def test_the_kill_switch_of_this_environment_counts(cache: Path) -> None:
    code, facts = inspect(cache, BUNDLED_MODEL_ID, DARKBLOOM_MTP="off")

    assert code == 0
    assert (facts["mtp"]["active"], facts["mtp"]["reason"]) == (False, "kill_switch_disabled")
    assert "off (kill_switch_disabled): DARKBLOOM_MTP" in run(cache, "inspect", BUNDLED_MODEL_ID, DARKBLOOM_MTP="0")[1]


@pytest.mark.parametrize("content", [None, b"", b"not safetensors"])
def test_a_broken_head_is_named_and_leaves_its_model_served(cache: Path, tmp_path: Path, content: bytes | None) -> None:
    model = shutil.copytree(BUNDLED_MODEL_DIR, tmp_path / "model")
    (model / "mtp-00001.safetensors").unlink()
    if content is not None:
        (model / "mtp-00001.safetensors").write_bytes(content)
    code, facts = inspect(cache, str(model))

    assert (code, facts["supported"], facts["problems"]) == (0, True, [])
    assert (facts["mtp"]["declared"], facts["mtp"]["reason"]) == ("declared", "inline_artifact_invalid")
    assert "mtp-00001.safetensors" in facts["mtp"]["detail"]
    assert facts["mtp"]["head"] is None


def test_the_head_is_spoken_of_also_when_a_shard_of_the_trunk_is_missing(cache: Path, tmp_path: Path) -> None:
    model = shutil.copytree(BUNDLED_MODEL_DIR, tmp_path / "model")
    (model / "model-00001-of-00001.safetensors").unlink()
    code, facts = inspect(cache, str(model))

    assert code == 1
    assert "model-00001-of-00001.safetensors is missing" in facts["problems"][0]
    assert facts["mtp"]["reason"] == "inline_artifact_invalid"
    assert "model-00001-of-00001.safetensors: is missing" in facts["mtp"]["detail"]


def test_a_foreign_model_is_no_failure(cache: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", {**qwen_config(), "model_type": "mamba2"})
    code, facts = inspect(cache, str(model))

    assert code == 0
    assert (facts["supported"], facts["kv_bytes_per_token"]) == (False, None)
    assert "mamba2" in facts["reason"]


def test_what_is_not_here_is_an_answer_too(cache: Path) -> None:
    code, facts = inspect(cache, "org/absent")

    assert code == 1
    assert "not on this machine" in facts["problems"][0]


def test_the_list_holds_the_bundled_model_and_the_cache(cache: Path) -> None:
    write_model(cache / "models--org--name" / "snapshots" / "abc")
    (write_model(cache / "models--org--bad" / "snapshots" / "abc") / "model.safetensors").unlink()
    code, said = run(cache, "list", "--json")

    assert code == 0
    assert [(one["id"], one["supported"]) for one in json.loads(said)["models"]] == [
        ("darkbloom-demo", True),
        ("org/bad", False),
        ("org/name", True),
    ]


def test_people_get_tables(cache: Path) -> None:
    assert "darkbloom-demo" in run(cache, "list")[1]
    code, said = run(cache, "inspect", BUNDLED_MODEL_ID)

    assert code == 0
    assert "declared; on, up to 2 drafts a round, 385.38 KiB" in said
    assert "105.00 KiB" in said


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.50 KiB"), (5 * 2**20, "5.00 MiB"), (12 * 2**30, "12.00 GiB")]
)
def test_bytes_are_shown_in_a_unit_that_reads(count: int, text: str) -> None:
    assert readable_bytes(count) == text
