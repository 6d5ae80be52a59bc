"""What a provider is told, from flags, environment and provider.toml."""

from pathlib import Path
from typing import Any

import pytest

from provider.config import ProviderConfig, data_directory, make_data_directory, read_config
from provider.errors import ConfigError
from provider.memory.caps import GIB


def told(tmp_path: Path, toml: str | None = None, flags: dict[str, Any] | None = None, **more: Any) -> ProviderConfig:
    file = tmp_path / "provider.toml"
    if toml is not None:
        file.write_text(toml)
    return read_config(flags or {}, file=file, **{"env": {}, **more})


def test_a_missing_file_means_defaults(tmp_path: Path) -> None:
    config = told(tmp_path)
    assert (config.engine.max_concurrent, config.engine.exact, config.engine.notices) == (8, "off", "comment")
    assert (config.memory_reserve_bytes, config.memory_limit_bytes) == (4 * GIB, None)
    assert (config.models, config.coordinators, config.without_effect("host")) == ((), (), [])
    assert config == told(tmp_path, "")


def test_a_file_sets_every_key(tmp_path: Path) -> None:
    config = told(
        tmp_path,
        """
        [provider]
        memory_reserve_gb = 2
        memory_limit_gb = 20.5
        name = "studio"
        [engine]
        mtp_mode = "off"
        exact = "auto"
        preempt_ram_gb = 1
        preempt_disk_gb = 0
        max_concurrent = 3
        context_length = 2048
        kv_pool_tokens = 9000
        mtp_drafter_path = "/drafter"
        notices = "chunk"
        [coordinator]
        url = ["ws://a/ws/provider", "ws://b/ws/provider"]
        [models]
        enabled = ["darkbloom-demo"]
        preload = ["darkbloom-demo"]
        idle_timeout_mins = 10
        """,
    )
    assert (config.memory_reserve_bytes, config.memory_limit_bytes) == (2 * GIB, 41 * GIB // 2)
    assert config.provider.name == "studio"
    assert config.engine.model_dump() == {
        "mtp_mode": "off",
        "exact": "auto",
        "preempt_ram_gb": 1.0,
        "preempt_disk_gb": 0.0,
        "max_concurrent": 3,
        "context_length": 2048,
        "kv_pool_tokens": 9000,
        "mtp_drafter_path": "/drafter",
        "notices": "chunk",
    }
    assert config.coordinators == ("ws://a/ws/provider", "ws://b/ws/provider")
    assert config.models == ("darkbloom-demo",)


def test_flags_beat_the_file_and_leave_the_rest_of_it(tmp_path: Path) -> None:
    file = "[engine]\nmax_concurrent = 3\nexact = 'auto'\n[coordinator]\nurl = 'ws://file'\n[models]\nenabled = ['one']"
    config = told(
        tmp_path,
        file,
        {"max_concurrent": 5, "exact": None},
        models=("two",),
        coordinators=("ws://flag",),
        name="flagged",
    )
    assert (config.engine.max_concurrent, config.engine.exact) == (5, "auto")
    assert (config.models, config.coordinators, config.provider.name) == (("two",), ("ws://flag",), "flagged")
    assert told(tmp_path).coordinators == ("ws://file",)


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ("[engine]\nmax_concurrnt = 3", "engine.max_concurrnt is not a known key"),
        ("[enginee]\nx = 1", "enginee is not a known key"),
        ("[engine]\nmax_concurrent = 0", "engine.max_concurrent"),
        ("[engine]\nmax_concurrent = '8'", "engine.max_concurrent"),
        ("[engine]\nmax_concurrent = true", "engine.max_concurrent"),
        ("[engine]\nexact = 'yes'", "'off', 'auto' or 'on'"),
        ("[engine]\nkv_pool_tokens = 1", "engine.kv_pool_tokens"),
        ("[provider]\nmemory_reserve_gb = -1", "provider.memory_reserve_gb"),
        ("[provider]\nmemory_reserve_gb = inf", "provider.memory_reserve_gb"),
        ("[provider]\nmemory_reserve_gb = 1e300", "provider.memory_reserve_gb"),
        (f"[provider]\nname = '{'n' * 257}'", "provider.name = 'nnn"),
        ("[engine]\ncontext_length = 3000000000", "engine.context_length"),
        ("[coordinator]\nurl = 3", "coordinator.url = 3"),
        ("[models]\nenabled = 'one'", "models.enabled"),
        ("engine = 3", "engine = 3"),
        ("[engine", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, toml: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        told(tmp_path, toml)
    assert key in str(refused.value)
    assert "provider.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_flag_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-concurrent 0: "):
        told(tmp_path, flags={"max_concurrent": 0})


@pytest.mark.parametrize(
    ("value", "killed"), [(None, False), ("1", False), ("on", False), ("0", True), ("OFF", True), ("false", True)]
)
def test_the_kill_switch_of_drafting_is_read(tmp_path: Path, value: str | None, killed: bool) -> None:
    env = {} if value is None else {"DARKBLOOM_MTP": value}
    assert told(tmp_path, env=env).mtp_killed is killed


@pytest.mark.parametrize(
    ("flag", "variable", "file", "mode", "by"),
    [
        (None, None, None, "off", None),
        (None, None, "auto", "auto", "engine.exact in provider.toml"),
        (None, "on", "auto", "on", "DARKBLOOM_EXACT"),
        (None, "ON", None, "on", "DARKBLOOM_EXACT"),
        (None, "", "off", "off", "engine.exact in provider.toml"),
        ("off", "on", "auto", "off", "--exact"),
    ],
)
def test_exactness_is_told_by_the_flag_the_environment_or_the_file(
    tmp_path: Path, flag: str | None, variable: str | None, file: str | None, mode: str, by: str | None
) -> None:
    toml = "" if file is None else f"[engine]\nexact = {file!r}"
    env = {} if variable is None else {"DARKBLOOM_EXACT": variable}
    config = told(tmp_path, toml, {"exact": flag}, env=env)
    assert (config.engine.exact, config.exact_told_by) == (mode, by)


def test_a_wrong_variable_of_exactness_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DARKBLOOM_EXACT='yes': say off, auto or on"):
        told(tmp_path, env={"DARKBLOOM_EXACT": "yes"})


def test_what_is_set_without_effect_is_named(tmp_path: Path) -> None:
    config = told(tmp_path, "[models]\nidle_timeout_mins = 5", {"preempt_ram_gb": 1.0})
    assert config.without_effect("unified") == ["engine.preempt_ram_gb"]
    assert config.without_effect("discrete") == []


def test_what_is_loaded_at_start_is_unsaid_nothing_or_a_list(tmp_path: Path) -> None:
    assert told(tmp_path).preload is None
    assert told(tmp_path, "[models]\npreload = []").preload == ()
    assert told(tmp_path, '[models]\npreload = ["a"]\npinned = ["b"]').preload == ("a",)
    assert told(tmp_path, '[models]\npinned = ["b"]').pinned == ("b",)


def test_the_memory_variables_change_the_cap_and_raise_the_reserve(tmp_path: Path) -> None:
    env = {"DARKBLOOM_MEM_CAP_FRACTION": "0.5", "DARKBLOOM_ACTIVATION_RESERVE_GB": "6.5"}
    config = told(tmp_path, env=env)
    assert (config.cap_fraction, config.activation_reserve_bytes) == (0.5, 13 * GIB // 2)
    assert (told(tmp_path).cap_fraction, told(tmp_path).activation_reserve_bytes) == (0.9, None)


def test_the_data_directory_is_the_flags_then_the_environments_then_the_users(tmp_path: Path) -> None:
    env = {"DARKBLOOM_DATA_DIR": str(tmp_path / "env")}
    assert data_directory(tmp_path / "flag", env) == tmp_path / "flag"
    assert data_directory(None, env) == tmp_path / "env"
    assert data_directory(None, {}) == Path.home() / ".local" / "share" / "darkbloom"
    assert data_directory(Path("here"), {}) == Path.cwd() / "here"
    assert data_directory(Path("~/there"), {}) == Path.home() / "there"


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    make_data_directory(tmp_path / "a" / "b")
    make_data_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=f"--data-dir {wrong}"):
            make_data_directory(wrong)


def test_the_api_of_a_provider_alone_is_told_by_flags_or_the_file(tmp_path: Path) -> None:
    toml = '[api]\napi_key = ["a", "b"]\nrate_limit = 60\ncors_origin = "https://chat.example"\n'
    api = told(tmp_path, toml).api
    assert (api.keys, api.rate_limit, api.origins) == (("a", "b"), 60, ("https://chat.example",))
    api = told(tmp_path, toml, api={"api_key": ["c"], "rate_limit": None, "cors_origin": None}).api
    assert (api.keys, api.rate_limit, api.origins) == (("c",), 60, ("https://chat.example",))
    assert told(tmp_path, "").api.keys == ()
    with pytest.raises(ConfigError, match=r"api.rate_limit = 0"):
        told(tmp_path, "[api]\nrate_limit = 0")
    with pytest.raises(ConfigError, match="--api-key"):
        told(tmp_path, "", api={"api_key": [""]})
