"""One `up` at a time has a data directory, and what it has started keeps it until the last of it has ended."""

import subprocess
from pathlib import Path

import pytest

from provider.claim import claimed
from provider.errors import ConfigError


def test_a_second_is_told_at_once_while_the_first_runs(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(ConfigError, match="already running"), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass


def test_what_the_one_before_has_started_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with claimed(tmp_path) as first:
        part = subprocess.Popen(["sleep", "60"], pass_fds=[first.fileno()])
        first.ending()
    with pytest.raises(ConfigError, match="has not ended"), claimed(tmp_path, wait_s=0.1):
        pass
    assert capsys.readouterr().out.count("Waiting") == 1
    part.kill()
    part.wait()
    with claimed(tmp_path, wait_s=0):
        pass


def test_one_that_was_killed_does_not_count_as_running(tmp_path: Path) -> None:
    with claimed(tmp_path) as first:
        (tmp_path / "up.lock").write_text('{"pid": 1, "started_at": 1.0}')
        with pytest.raises(ConfigError, match="has not ended"), claimed(tmp_path, wait_s=0):
            pass
        assert first.fileno() > 0
