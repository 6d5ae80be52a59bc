"""`darkbloom-py doctor` on memory, as a shell sees it: described machines, and this one beside a running provider."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from provider.cli import application
from provider.fit_findings import FIT_CHECK
from provider.memory.caps import GIB
from provider.memory.floors import DEFAULT_FLOOR_BYTES, shipped_table
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.state import write_state
from tests.fixtures.worked_tiers import Tier, worked_tiers
from tests.integration.processes import run

EXAMPLE = {
    "physical_bytes": 25769803776,
    "os_available_bytes": 17287036928,
    "mlx_active_bytes": 0,
    "mlx_cache_bytes": 0,
    "memory_kind": "unified",
    "memory_reserve_gb": 4,
    "advertised": ["gpt-oss-20b"],
    "resident": {},
    "models": [{"id": "gpt-oss-20b", "size_bytes": 12100000000, "model_type": "gpt_oss", "vision": False}],
    "target": "gpt-oss-20b",
}


def doctor(*told: str, **environment: str) -> Result:
    return CliRunner().invoke(application(["doctor"]), ["doctor", *told], env=environment)


def judged(directory: Path, facts: dict[str, Any], *told: str, **environment: str) -> tuple[int, dict[str, Any]]:
    file = directory / "facts.json"
    file.write_text(json.dumps(facts))
    result = doctor("--facts", str(file), "--json", *told, **environment)
    assert result.exit_code in (0, 1), result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer.keys() == {"checks", "fit"}
    (check,) = answer["checks"]
    assert check["name"] == FIT_CHECK
    assert check["status"] == answer["fit"]["verdict"]
    return result.exit_code, answer["fit"]


def described(tier: Tier, free_gib: float) -> dict[str, Any]:
    return {
        **EXAMPLE,
        "physical_bytes": tier.physical_bytes,
        "os_available_bytes": int(free_gib * GIB),
        "advertised": tier.advertised,
        "models": [{"id": tier.model, "size_bytes": tier.size_bytes, "model_type": "", "vision": False}],
        "target": tier.model,
    }


@pytest.mark.parametrize("tier", worked_tiers(), ids=str)
def test_every_worked_tier_has_the_documented_numbers(tmp_path: Path, tier: Tier) -> None:
    code, fit = judged(tmp_path, described(tier, tier.free + 0.01))

    assert fit["required_bytes"] / GIB == pytest.approx(tier.required, abs=0.01)
    assert fit["activation_reserve_bytes"] / GIB == pytest.approx(tier.reserve, abs=0.01)
    assert fit["effective_cap_bytes"] / GIB == pytest.approx(tier.cap, abs=0.01)
    usable = min(tier.free + 0.01, tier.machine) - (tier.machine - tier.cap)
    assert fit["usable_bytes"] / GIB == pytest.approx(usable, abs=0.01)
    assert (code, fit["verdict"]) == ((0, "pass") if tier.fits else (1, "fail"))
    assert judged(tmp_path, described(tier, tier.free - 0.01))[1]["verdict"] == "fail"


def test_the_documented_example_fails_for_want_of_free_memory(tmp_path: Path) -> None:
    code, fit = judged(tmp_path, EXAMPLE)

    assert code == 1
    assert fit == {
        "target": "gpt-oss-20b",
        "required_bytes": 19351838208,
        "usable_bytes": 17287036928 - 4 * GIB,
        "ceiling_bytes": 17287036928 - 4 * GIB,
        "activation_reserve_bytes": 7 * GIB // 2,
        "effective_cap_bytes": 20 * GIB,
        "verdict": "fail",
        "alternatives": [],
    }


def test_idle_models_make_a_warning_which_fails_only_when_strict(tmp_path: Path) -> None:
    facts = {
        **EXAMPLE,
        "physical_bytes": 32 * GIB,
        "os_available_bytes": 12 * GIB,
        "mlx_active_bytes": 15 * GIB,
        "resident": {"gemma-4-26b-qat-4bit": 14 * GIB},
    }
    code, fit = judged(tmp_path, facts)

    assert (code, fit["verdict"]) == (0, "warn")
    assert (fit["usable_bytes"], fit["ceiling_bytes"]) == (8 * GIB, 22 * GIB)
    assert fit["required_bytes"] / GIB == pytest.approx(20.02, abs=0.01)
    assert judged(tmp_path, facts, "--strict")[0] == 1


@pytest.mark.parametrize(
    ("advertised", "reserve"), [(["gpt-oss-20b"], 3.5), ([], 5.5), (None, 3.5), (["gpt-oss-20b", "other"], 5.5)]
)
def test_the_advertised_set_decides_whose_floor_is_charged(
    tmp_path: Path, advertised: list[str] | None, reserve: float
) -> None:
    _, fit = judged(tmp_path, {**EXAMPLE, "advertised": advertised})

    assert fit["activation_reserve_bytes"] == int(reserve * GIB)


@pytest.mark.parametrize(("told", "reserve"), [("7", 7), ("3", 3.5), ("0", 3.5), ("nan", 3.5), ("-1", 3.5)])
def test_the_environment_only_raises_the_reserve(tmp_path: Path, told: str, reserve: float) -> None:
    _, fit = judged(tmp_path, EXAMPLE, DARKBLOOM_ACTIVATION_RESERVE_GB=told)

    assert fit["activation_reserve_bytes"] == int(reserve * GIB)


def test_people_are_told_what_would_fit_instead(tmp_path: Path) -> None:
    qwen = {"id": "qwen3.6-35b-a3b-vl-mtp-mxfp8", "size_bytes": 21300000000, "model_type": "", "vision": True}
    (tmp_path / "facts.json").write_text(
        json.dumps(
            {
                **EXAMPLE,
                "physical_bytes": 32 * GIB,
                "os_available_bytes": 30 * GIB,
                "advertised": [qwen["id"]],
                "models": [qwen, *EXAMPLE["models"]],
                "target": qwen["id"],
            }
        )
    )
    result = doctor("--facts", str(tmp_path / "facts.json"))

    assert result.exit_code == 1
    assert result.stdout.count("RAM is too small for qwen3.6-35b-a3b-vl-mtp-mxfp8") == 1
    assert "fix: Serve one that fits: gpt-oss-20b (needs 18.02 GiB)." in result.stdout


def test_a_bad_file_is_wrong_usage_that_names_the_key(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({**EXAMPLE, "os_available_bytes": -1}))
    done = run(tmp_path / "log", "doctor", "--facts", str(file), "--json")

    assert done.returncode == 2
    assert "os_available_bytes" in done.stderr
    assert done.stdout == ""


DEMO_FLOOR = shipped_table()[BUNDLED_MODEL_ID]


def beside_a_provider(data_dir: Path, advertised: list[str] | None, details: dict[str, Any]) -> dict[str, Any]:
    """What doctor says beside this very process, which is the provider that wrote its state."""
    write_state(data_dir, advertised, details)
    result = doctor("--json", "--data-dir", str(data_dir), HOME=str(data_dir))
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["fit"]["target"] == BUNDLED_MODEL_ID
    return answer


@pytest.mark.parametrize(
    ("advertised", "reserve"),
    [
        ([], DEFAULT_FLOOR_BYTES),
        (None, DEMO_FLOOR),
        ([BUNDLED_MODEL_ID], DEMO_FLOOR),
        (["somebody-elses"], DEFAULT_FLOOR_BYTES),
    ],
)
def test_a_running_provider_is_believed_about_what_it_advertises(
    tmp_path: Path, advertised: list[str] | None, reserve: int
) -> None:
    answer = beside_a_provider(tmp_path, advertised, {})

    assert answer["fit"]["activation_reserve_bytes"] == reserve


def test_a_running_provider_is_believed_about_its_memory_and_its_troubles(tmp_path: Path) -> None:
    details = {
        "memory": {"active_bytes": 3 * GIB, "cache_bytes": GIB},
        "resident": {"somebody-elses": 2 * GIB},
        "slots": [{"model": "somebody-elses", "state": "idle"}],
        "last_load_error": {"model": "somebody-elses", "message": "somebody-elses needs 99 GiB", "at": 0.0},
        "coordinators": [
            {"url": "ws://c", "routability": {"m": {"routable": False, "reason": "memory_cap", "detail": "9 GiB"}}}
        ],
    }
    answer = beside_a_provider(tmp_path, [BUNDLED_MODEL_ID], details)
    checks = {check["name"]: check for check in answer["checks"]}

    assert answer["fit"]["activation_reserve_bytes"] == DEFAULT_FLOOR_BYTES
    assert answer["fit"]["usable_bytes"] < answer["fit"]["ceiling_bytes"]
    assert "for models" in checks["memory"]["message"]
    assert "99 GiB" in checks["last load"]["message"]
    assert "memory_cap (9 GiB)" in checks["routable"]["message"]
