"""The table of commands, and how a command line that is wrong ends."""

import importlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from provider import cli
from provider.cli import COMMANDS, application
from provider.errors import ConfigError


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(application(list(arguments)), list(arguments))
    return done.exit_code, done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there_and_helps(name: str) -> None:
    assert hasattr(importlib.import_module(COMMANDS[name].module), COMMANDS[name].target)
    code, output = said(name, "--help")
    assert code == 0
    assert "Usage" in output


def test_help_lists_the_commands_and_version_is_the_packages() -> None:
    code, output = said("--help")
    assert code == 0
    assert all(name in output for name in COMMANDS)
    assert said("--version") == (0, version("darkbloom-py") + "\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("local", "--nonsense"),
        ("local", "--port", "x"),
        ("local", "--port", "65536"),
        ("local", "--backend", "tpu"),
        ("local", "--exact", "perhaps"),
        ("local", "--mtp-mode", "perhaps"),
        ("local", "--kv-pool-tokens", "1"),
        ("local", "--preempt-ram-gb", "-1"),
        ("up", "--port", "0"),
        ("provider",),
        ("provider", "nonsense"),
        ("provider", "start", "--max-concurrent", "0"),
        ("fleet", "simulate", "--providers", "1", "--coordinator", "ws://x", "--token", "t", "--machine", "zzz"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    code, output = said(*arguments)
    assert code == 2
    assert "Usage" in output


REST = ("--token", "t", "--model", "darkbloom-demo")


@pytest.mark.parametrize(
    ("missing", "key"),
    [
        (("--token", "t", "--model", "darkbloom-demo"), "--coordinator"),
        (("--coordinator", "ws://h/ws/provider", "--model", "darkbloom-demo"), "--token"),
        (("--coordinator", "ws://h/ws/provider", "--token", "t"), "--model"),
        (("--coordinator", "h:8080", "--token", "t", "--model", "darkbloom-demo"), "ws://HOST:PORT"),
        (("--coordinator", "http://h/ws/provider", *REST), "isn't ws or wss"),
        (("--coordinator", "ws:///ws/provider", *REST), "hostname isn't provided"),
        (("--coordinator", "ws://h:99999/ws/provider", *REST), "Port out of range"),
        (("--coordinator", "ws://[::1/ws/provider", *REST), "Invalid IPv6"),
        (("--coordinator", "ws://h:8080", *REST), "no path"),
        (("--coordinator", "ws://u:p@h/ws/provider", *REST), "passed as --token"),
        (("--coordinator", "ws://h/ws/provider", "--coordinator", "ws://H:80/ws/provider", *REST), "named twice"),
        (("--coordinator", "ws://h/ws/provider", "--token", "t\n", "--model", "darkbloom-demo"), "line break"),
        (("--coordinator", "ws://h/ws/provider", *REST, "--name", "n" * 257), "--name 'nnn"),
        (("--coordinator", "ws://h/ws/provider", *REST, "--kv-pool-tokens", str(2**63)), "--kv-pool-tokens"),
        (
            ("--coordinator", "ws://h/ws/provider", "--token", "t", *(f"--model=m{one}" for one in range(129))),
            "128 at most",
        ),
    ],
)
def test_a_provider_that_could_never_work_names_the_flag(
    missing: tuple[str, ...], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DARKBLOOM_PROVIDER_TOKEN", raising=False)
    arguments = ["provider", "start", "--data-dir", str(tmp_path / "data"), *missing]
    done = CliRunner().invoke(application(arguments), arguments)
    assert isinstance(done.exception, ConfigError)
    assert key in str(done.exception)
    assert not (tmp_path / "data").exists()


def test_no_provider_running_is_told(tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    assert said("provider", "status", *where) == (1, f"No provider of {tmp_path} is running.\n")
    code, output = said("provider", "status", "--json", *where)
    assert (code, json.loads(output)) == (1, {"running": False})
    assert said("provider", "stop", *where) == (0, f"No provider of {tmp_path} is running.\n")


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [(ConfigError("that is wrong."), 1, "error: that is wrong.\n"), (KeyboardInterrupt(), 130, "")],
)
def test_what_a_command_raises_is_one_line_and_an_exit_code(
    raised: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(_: list[str]) -> None:
        raise raised

    monkeypatch.setattr(cli, "application", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == text
