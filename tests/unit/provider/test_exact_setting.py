"""The mode of exact concurrency: who says what it is, what is kept of it, and how a provider speaks of it."""

from pathlib import Path
from typing import Any

import pytest

from provider.api.settings import mode_in
from provider.config import ProviderConfig, read_config
from provider.errors import ConfigError, RequestFailed
from provider.exact.policy import Mode
from provider.exact_setting import FILE_NAME, ExactSetting


def config(tmp_path: Path, flag: str | None = None) -> ProviderConfig:
    return read_config({"exact": flag}, data_dir=tmp_path / "data", file=tmp_path / "provider.toml", env={})


def test_nothing_said_means_off(tmp_path: Path) -> None:
    setting = ExactSetting(config(tmp_path))
    assert (setting.wanted, setting.stored, setting.overridden_by) == ("off", None, None)


@pytest.mark.parametrize("mode", ["off", "auto", "on"])
def test_what_is_stored_is_there_after_a_restart(tmp_path: Path, mode: Mode) -> None:
    ExactSetting(config(tmp_path)).store(mode)
    assert ExactSetting(config(tmp_path)).wanted == mode
    assert [one.name for one in (tmp_path / "data").iterdir()] == [FILE_NAME]


def test_a_flag_beats_what_is_stored_and_what_is_stored_stays(tmp_path: Path) -> None:
    setting = ExactSetting(config(tmp_path, flag="off"))
    setting.store("on")
    assert (setting.wanted, setting.stored, setting.overridden_by) == ("off", "on", "--exact")
    assert ExactSetting(config(tmp_path)).wanted == "on"


@pytest.mark.parametrize("content", ["", "[]", '{"exact_concurrency": 3}', '{"exact_concurrency": "perhaps"}'])
def test_a_file_that_cannot_be_used_is_refused_with_its_path_and_the_way_out(tmp_path: Path, content: str) -> None:
    path = tmp_path / "data" / FILE_NAME
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ConfigError, match="delete it") as refused:
        ExactSetting(config(tmp_path))
    assert str(path) in str(refused.value)


def test_a_file_that_says_nothing_of_it_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data" / FILE_NAME
    path.parent.mkdir()
    path.write_text('{"of a later version": 1}')
    assert ExactSetting(config(tmp_path)).stored is None


def test_what_cannot_be_stored_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the directory should be")
    with pytest.raises(ConfigError):
        ExactSetting(config(tmp_path))
    (tmp_path / "data").unlink()
    setting = ExactSetting(config(tmp_path))
    (tmp_path / "data").write_text("again")
    with pytest.raises(OSError, match="data"):
        setting.store("on")
    assert (setting.wanted, setting.stored) == ("off", None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"mode": "yes"}, "invalid_value"),
        ({"mode": "ON"}, "invalid_value"),
        ({"mode": True}, "invalid_value"),
        ({"mode": ["on"]}, "invalid_value"),
    ],
)
def test_a_wrong_mode_is_refused_with_those_that_are_accepted(body: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestFailed) as refused:
        mode_in(body)
    told = refused.value.failure
    assert (told.status, told.code, told.param) == (400, code, "mode")
    assert "off, auto, on" in told.message


def test_an_accepted_mode_is_taken() -> None:
    assert [mode_in({"mode": mode, "more": 1}) for mode in ("off", "auto", "on")] == ["off", "auto", "on"]


def test_null_takes_back_what_was_stored(tmp_path: Path) -> None:
    assert mode_in({"mode": None}) is None
    setting = ExactSetting(config(tmp_path))
    for _ in range(2):  # there may be nothing to take back
        setting.store("on")
        setting.store(None)
        setting.store(None)
        assert (setting.stored, setting.wanted, ExactSetting(config(tmp_path)).wanted) == (None, "off", "off")


@pytest.mark.parametrize("content", ["", '{"exact_concurrency": "perhaps"}'])
def test_where_a_flag_decides_a_file_that_cannot_be_used_is_only_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "data" / FILE_NAME
    path.parent.mkdir()
    path.write_text(content)
    setting = ExactSetting(config(tmp_path, flag="auto"))
    assert (setting.wanted, setting.stored) == ("auto", None)
    assert str(path) in caplog.text
    setting.store("on")
    assert ExactSetting(config(tmp_path)).wanted == "on", "it can be stored anew"
