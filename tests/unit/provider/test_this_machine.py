"""This machine as facts: by the running provider's word, or as after a start."""

from dataclasses import replace
from pathlib import Path

import pytest

from provider.config import ProviderConfig, read_config
from provider.fitness import MachineFacts, judge_fit
from provider.memory.caps import GIB
from provider.memory.fit import Fit
from provider.memory.floors import shipped_table
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.inspection import inspect_model
from provider.running import Running
from provider.system_memory import SystemMemory
from provider.this_machine import Known, machine_facts, servable_beside
from tests.fixtures.checkpoints import qwen_config, write_model

DEMO = Known(BUNDLED_MODEL_ID, inspect_model(BUNDLED_MODEL_DIR))
MEMORY = SystemMemory(physical_bytes=24 * GIB, available_bytes=10 * GIB, pressure=None, read_at_s=0.0)
FLOORS = {**shipped_table(), "measured": GIB}


def config(tmp_path: Path, toml: str = "", **flags: int) -> ProviderConfig:
    file = tmp_path / "provider.toml"
    file.write_text(toml)
    return read_config(flags, file=file, data_dir=tmp_path, env={})


def facts(
    told: ProviderConfig,
    memory: SystemMemory = MEMORY,
    known: tuple[Known, ...] = (DEMO,),
    target: str = BUNDLED_MODEL_ID,
    configured: tuple[str, ...] = (),
    running: Running | None = None,
    **env: str,
) -> MachineFacts:
    found = machine_facts(memory, told, known, target, FLOORS, configured, running, env)
    assert found is not None
    return found


def serving(advertised: tuple[str, ...] | None, **more: object) -> Running:
    return replace(Running(pid=1, age_s=1.0, advertised=advertised), **more)


def test_without_a_provider_the_configured_models_are_what_would_be_advertised(tmp_path: Path) -> None:
    found = facts(config(tmp_path), configured=("a", "b"))

    assert (found.advertised, found.resident, found.active_bytes) == (("a", "b"), {}, 0)
    assert facts(config(tmp_path)).advertised is None


@pytest.mark.parametrize("advertised", [None, (), ("a",)])
def test_a_running_provider_says_what_it_advertises(tmp_path: Path, advertised: tuple[str, ...] | None) -> None:
    found = facts(config(tmp_path), configured=("other",), running=serving(advertised))

    assert found.advertised == advertised


def test_a_provider_that_fell_silent_is_not_believed(tmp_path: Path) -> None:
    found = facts(config(tmp_path), configured=("mine",), running=serving((), age_s=600.0, active_bytes=5 * GIB))

    assert (found.advertised, found.active_bytes) == (("mine",), 0)


def test_the_providers_own_figures_are_used_and_only_idle_models_count_as_idle(tmp_path: Path) -> None:
    resident = {"a": 3 * GIB, "b": 2 * GIB}
    running = serving(("a", "b"), active_bytes=6 * GIB, cache_bytes=GIB, resident=resident, idle=frozenset({"a"}))
    found = facts(config(tmp_path), running=running)

    assert (found.active_bytes, found.cache_bytes, found.resident) == (6 * GIB, GIB, {"a": 3 * GIB})


def test_a_loaded_model_is_judged_as_if_its_own_memory_were_free(tmp_path: Path) -> None:
    resident = {BUNDLED_MODEL_ID: 8 * GIB}
    alone = serving((BUNDLED_MODEL_ID,), active_bytes=9 * GIB, cache_bytes=GIB, resident=resident)
    found = facts(config(tmp_path), running=replace(alone, idle=frozenset(resident)))

    assert (found.active_bytes, found.cache_bytes, found.resident) == (0, 0, {})
    assert found.available_bytes == 20 * GIB
    beside = facts(config(tmp_path), running=replace(alone, resident={**resident, "a": GIB}))
    assert (beside.active_bytes, beside.cache_bytes, beside.available_bytes) == (GIB, GIB, 18 * GIB)


def test_a_served_model_that_is_not_known_here_has_the_providers_floor(tmp_path: Path) -> None:
    """Its weights may lie where only the provider was told to look, with a floor measured for them."""
    running = serving(("elsewhere", BUNDLED_MODEL_ID), reserve_bytes=2 * GIB)

    assert judge_fit(facts(config(tmp_path), running=running)).activation_reserve_bytes == 2 * GIB


def test_a_reserve_that_the_providers_environment_raised_is_believed(tmp_path: Path) -> None:
    running = serving(("gpt-oss-20b",), reserve_bytes=9 * GIB)

    assert judge_fit(facts(config(tmp_path), running=running)).activation_reserve_bytes == 9 * GIB
    # One that rests on the models alone is worked out anew for the model in question.
    running = serving(("gpt-oss-20b",), reserve_bytes=7 * GIB // 2)
    assert judge_fit(facts(config(tmp_path), running=running)).activation_reserve_bytes == 7 * GIB // 2


def test_configuration_and_environment_bound_the_machine(tmp_path: Path) -> None:
    told = config(tmp_path, "[provider]\nmemory_reserve_gb = 6.5\nmemory_limit_gb = 12\n")
    found = facts(told, DARKBLOOM_ACTIVATION_RESERVE_GB="7", DARKBLOOM_MEM_CAP_FRACTION="0.8")

    assert (found.reserve_bytes, found.limit_bytes) == (13 * GIB // 2, 12 * GIB)
    assert (found.told_reserve_bytes, found.cap_fraction) == (7 * GIB, 0.8)


@pytest.mark.parametrize(
    ("flags", "positions", "rows"),
    [
        ({}, 4096, 8),
        ({"context_length": 1024}, 1024, 8),
        ({"max_concurrent": 2}, 4096, 2),
        ({"kv_pool_tokens": 500}, 500, 8),
    ],
)
def test_the_smallest_kv_follows_from_how_the_model_would_be_served(
    tmp_path: Path, flags: dict[str, int], positions: int, rows: int
) -> None:
    (model,) = facts(config(tmp_path, **flags)).models
    found = DEMO.inspection
    assert found.state_bytes is not None
    assert found.kv_bytes_per_token is not None

    assert model.minimum_kv_bytes == rows * (found.state_bytes + positions * found.kv_bytes_per_token) < GIB


def test_the_bundled_model_is_served_on_8_gib_with_5_available(tmp_path: Path) -> None:
    """What `make up` needs of a machine."""
    small = replace(MEMORY, physical_bytes=8 * GIB, available_bytes=5 * GIB)
    report = judge_fit(facts(config(tmp_path), small, configured=(BUNDLED_MODEL_ID,)))

    assert report.verdict is Fit.PASS
    assert (report.usable_bytes, report.effective_cap_bytes) == (GIB, 4 * GIB)


def test_a_model_whose_geometry_is_unknown_counts_the_whole_smallest_kv(tmp_path: Path) -> None:
    foreign = write_model(tmp_path / "foreign", {**qwen_config(), "model_type": "unheard_of"})
    (model,) = facts(config(tmp_path), known=(Known("foreign", inspect_model(foreign)),), target="foreign").models

    assert model.minimum_kv_bytes == GIB


def test_only_whole_models_of_served_families_are_alternatives(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "models--org--whole" / "snapshots" / "1")
    (write_model(tmp_path / "models--org--broken" / "snapshots" / "1") / "model.safetensors").unlink()
    write_model(tmp_path / "models--org--foreign" / "snapshots" / "1", {**qwen_config(), "model_type": "unheard_of"})
    (write_model(tmp_path / "models--org--odd" / "snapshots" / "1") / "config.json").write_text("{")
    env = {"HF_HUB_CACHE": str(tmp_path)}

    assert [one.id for one in servable_beside([DEMO], env)] == ["org/whole"]
    asked = Known("org/whole", inspect_model(whole))
    assert [one.id for one in servable_beside([asked], env)] == [BUNDLED_MODEL_ID]


def test_nothing_is_judged_where_nothing_is_known(tmp_path: Path) -> None:
    broken = write_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")
    known = (Known("broken", inspect_model(broken)),)
    told = config(tmp_path)

    assert machine_facts(MEMORY, told, known, "broken", FLOORS, (), None, {}) is None
    unreadable = replace(MEMORY, physical_bytes=None)
    assert machine_facts(unreadable, told, (DEMO,), BUNDLED_MODEL_ID, FLOORS, (), None, {}) is None
