"""A machine described in a file: what is taken from it, and what is refused by its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from provider.described import read_described
from provider.errors import ConfigError
from provider.fitness import MachineFacts
from provider.memory.caps import GIB, MINIMUM_KV_BYTES

EXAMPLE: dict[str, Any] = {
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


def read(directory: Path, told: object, target: str | None = None, **env: str) -> MachineFacts:
    path = directory / "facts.json"
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    return read_described(path, target, env)


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, EXAMPLE)

    assert (found.physical_bytes, found.available_bytes) == (24 * GIB, 17287036928)
    assert found.reserve_bytes == 4 * GIB
    assert found.advertised == ("gpt-oss-20b",)
    assert [(one.id, one.size_bytes, one.vision) for one in found.models] == [("gpt-oss-20b", 12100000000, False)]
    assert found.models[0].minimum_kv_bytes == MINIMUM_KV_BYTES


@pytest.mark.parametrize(("told", "advertised"), [(["a", "b"], ("a", "b")), ([], ()), (None, None)])
def test_a_list_an_empty_list_and_null_stay_three_things(
    tmp_path: Path, told: list[str] | None, advertised: tuple[str, ...] | None
) -> None:
    assert read(tmp_path, {**EXAMPLE, "advertised": told}).advertised == advertised


def test_decimals_of_a_gib_are_allowed(tmp_path: Path) -> None:
    assert read(tmp_path, {**EXAMPLE, "memory_reserve_gb": 2.5}).reserve_bytes == 5 * GIB // 2


def test_unknown_available_memory_is_not_zero(tmp_path: Path) -> None:
    assert read(tmp_path, {**EXAMPLE, "os_available_bytes": None}).available_bytes is None


def test_idle_models_are_taken_with_their_bytes(tmp_path: Path) -> None:
    found = read(tmp_path, {**EXAMPLE, "resident": {"a": GIB}, "mlx_active_bytes": 2 * GIB, "mlx_cache_bytes": 3})

    assert (found.resident, found.active_bytes, found.cache_bytes) == ({"a": GIB}, 2 * GIB, 3)


def test_the_environment_applies_as_it_does_to_a_provider(tmp_path: Path) -> None:
    found = read(tmp_path, EXAMPLE, DARKBLOOM_ACTIVATION_RESERVE_GB="8", DARKBLOOM_MEM_CAP_FRACTION="0.5")

    assert (found.told_reserve_bytes, found.cap_fraction) == (8 * GIB, 0.5)


def test_another_model_of_the_file_may_be_asked_about(tmp_path: Path) -> None:
    models = [*EXAMPLE["models"], {"id": "other", "size_bytes": 1}]

    assert read(tmp_path, {**EXAMPLE, "models": models}, target="other").target == "other"
    with pytest.raises(ConfigError, match="target: 'absent' is not one of models"):
        read(tmp_path, EXAMPLE, target="absent")


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in EXAMPLE.items() if name != key}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("{", "no JSON"),
        ("", "no JSON"),
        ([], "the whole file"),
        (without("physical_bytes"), "physical_bytes is missing"),
        (without("os_available_bytes"), "os_available_bytes is missing"),
        (without("target"), "target is missing"),
        (without("models"), "models is missing"),
        ({**EXAMPLE, "physical_bytes": 0}, "physical_bytes = 0"),
        ({**EXAMPLE, "physical_bytes": 1.5}, "physical_bytes = 1.5"),
        ({**EXAMPLE, "physical_bytes": float("inf")}, "physical_bytes = inf"),
        ({**EXAMPLE, "os_available_bytes": -1}, "os_available_bytes = -1"),
        ({**EXAMPLE, "os_available_bytes": "4"}, "os_available_bytes = '4'"),
        ({**EXAMPLE, "mlx_active_bytes": True}, "mlx_active_bytes = True"),
        ({**EXAMPLE, "memory_kind": "shared"}, "memory_kind = 'shared'"),
        ({**EXAMPLE, "memory_reserve_gb": float("nan")}, "memory_reserve_gb = nan"),
        ({**EXAMPLE, "memory_reserve_gb": -1}, "memory_reserve_gb = -1"),
        ({**EXAMPLE, "advertised": "gpt-oss-20b"}, "advertised = 'gpt-oss-20b'"),
        ({**EXAMPLE, "resident": ["a"]}, r"resident = \['a'\]"),
        ({**EXAMPLE, "resident": {"a": -1}}, "resident.a = -1"),
        ({**EXAMPLE, "models": []}, "models = "),
        ({**EXAMPLE, "models": [{"id": "a"}]}, "models.0.size_bytes is missing"),
        ({**EXAMPLE, "models": [{"id": "a", "size_bytes": 1, "visoin": True}]}, "models.0.visoin is not a known key"),
        ({**EXAMPLE, "models": [*EXAMPLE["models"], *EXAMPLE["models"]]}, "models: every id"),
        ({**EXAMPLE, "target": "absent"}, "target: 'absent'"),
        ({**EXAMPLE, "reserve": 4}, "reserve is not a known key"),
    ],
)
def test_what_does_not_describe_a_machine_is_refused_by_its_key(tmp_path: Path, told: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, told)


def test_a_file_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.json cannot be read: No such file"):
        read_described(tmp_path / "none.json")
