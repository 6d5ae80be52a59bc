"""`doctor --exact` on real models: a digest for each condition, and the verdict as an exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from provider.config import read_config
from provider.doctor import doctor
from provider.exact.policy import Condition
from provider.exact_findings import judge_exact
from provider.exact_trial import load, try_exact
from provider.findings import Status
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from tests.fixtures.family_models import write_family

TOKENS = 10
"""Enough for three neighbours to join one after the other."""


def called(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, ["--exact", *arguments])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("models") / "tiny", "llama")


def test_the_bundled_model_is_the_same_in_every_condition_and_each_has_come_about(tmp_path: Path) -> None:
    said: list[str] = []
    config = read_config({}, data_dir=tmp_path, file=tmp_path / "none.toml", env={})
    facts = try_exact(BUNDLED_MODEL_ID, config, False, said.append, TOKENS)
    assert [one.condition for one in facts.tried] == [*Condition]
    assert all(one.shown for one in facts.tried), facts
    assert len({one.digest for one in facts.tried}) == 1
    assert said == [f"{one.condition}: {one.digest}" for one in facts.tried]
    assert [one.status for one in judge_exact(facts)] == [Status.PASS]


@pytest.mark.parametrize(
    ("toml", "env"), [("", {"DARKBLOOM_MTP": "0"}), ('[engine]\nmtp_mode = "off"\n', {})], ids=["killed", "mode off"]
)
def test_it_loads_the_head_that_a_provider_of_this_machine_would(
    tmp_path: Path, toml: str, env: dict[str, str]
) -> None:
    file = tmp_path / "provider.toml"
    file.write_text(toml)
    backend = load(BUNDLED_MODEL_DIR, read_config({}, data_dir=tmp_path, file=file, env=env))
    assert (backend.facts.max_drafts, backend.grid.drafts) == (0, 2), "and looks for the lanes of one that drafts"
    backend.close()


def test_the_command_prints_one_digest_per_condition_and_the_verdict(llama: Path) -> None:
    done = called("--model", str(llama))
    assert done.exit_code == 0, done.output
    *lines, verdict = done.stdout.splitlines()
    digests = dict(line.split(": ") for line in lines)
    assert [*digests] == [one.value for one in Condition if one is not Condition.DRAFTED], "it has no head"
    assert len(set(digests.values())) == 1
    assert verdict.startswith("PASS exact concurrency: tiny on ")


def test_its_json_is_one_object_with_the_digests_and_the_verdict(llama: Path) -> None:
    told = object_of(called("--adversary", "--json", "--model", str(llama)), 0)
    assert told["fit"] is None
    assert [one["status"] for one in told["checks"]] == ["pass", "pass"]
    exact = told["exact"]
    assert (exact["model"], exact["adversary"], exact["verdict"]) == ("tiny", True, "pass")
    assert exact["lane_rows"] in (1, 2, 4, 8, 16)
    assert [one["name"] for one in exact["conditions"]] == [one["name"] for one in exact["without"]]
    assert len({one["digest"] for one in exact["conditions"]}) == 1
    assert len({one["digest"] for one in exact["without"]}) > 1


def test_a_model_that_is_not_there_is_a_failed_check_in_one_object(tmp_path: Path) -> None:
    told = object_of(called("--json", "--model", str(tmp_path / "none")), 1)
    assert [(one["name"], one["status"]) for one in told["checks"]] == [("model files", "fail")]
    assert told["exact"] is None


def test_a_mixture_whose_single_row_is_sorted_fails_by_name(tmp_path: Path) -> None:
    many = write_family(tmp_path / "many", "qwen3_moe", num_experts=64, num_experts_per_tok=64)
    told = object_of(called("--json", "--model", str(many)), 1)
    assert (told["exact"]["verdict"], told["exact"]["lane_rows"], told["exact"]["conditions"]) == ("fail", None, [])
    [check] = told["checks"]
    assert check["status"] == "fail"
    assert "64 experts" in check["message"]
    assert "exact off" in check["fix"]


def object_of(done: Result, exit_code: int) -> dict[str, Any]:
    assert done.exit_code == exit_code, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told
