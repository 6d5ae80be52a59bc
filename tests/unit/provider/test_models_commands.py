"""`models list` and `models inspect`, as a shell sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from provider.models.bundled import BUNDLED_MODEL_ID
from provider.models.commands import app, readable_bytes
from tests.fixtures.checkpoints import qwen_config, write_model, write_sharded_model


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run(cache: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"HF_HUB_CACHE": str(cache), "COLUMNS": "120"})
    return result.exit_code, result.stdout


def inspect(cache: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, said = run(cache, "inspect", *arguments, "--json")
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
    assert facts["mtp"] == {"declared": "declared", "active": False, "reason": "engine_inactive"}
    assert (facts["kv_bytes_per_token"], facts["state_bytes"]) == (512, 107520)
    minimum_kv = 8 * (107520 + 4096 * 512)
    assert facts["memory_required_bytes"] == facts["size_bytes"] * 6 // 5 + 11 * 2**29 + minimum_kv


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
    assert facts["mtp"]["declared"] == "undeterminable"
    assert "config.json" in facts["problems"][0]


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
    assert "declared; off (engine_inactive)" in said
    assert "105.00 KiB" in said


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1536, "1.50 KiB"), (5 * 2**20, "5.00 MiB"), (12 * 2**30, "12.00 GiB")]
)
def test_bytes_are_shown_in_a_unit_that_reads(count: int, text: str) -> None:
    assert readable_bytes(count) == text
