"""The state file of a running provider, and who a provider is."""

import json
import os
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from provider.errors import ConfigError
from provider.identity import provider_id, write_atomically
from provider.start import print_status
from provider.state import DaemonState, path_in, read_state, refuse_second, remove_state, write_state


@pytest.mark.parametrize("advertised", [None, [], ["one", "two"]])
def test_what_a_running_provider_writes_is_read(tmp_path: Path, advertised: list[str] | None) -> None:
    write_state(tmp_path / "new", advertised, {"name": "me"})
    me = psutil.Process()
    assert read_state(tmp_path / "new") == DaemonState(me.pid, me.create_time(), advertised, {"name": "me"})
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["daemon-state.json"]


def test_a_removed_state_is_none_and_may_be_removed_again(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, [], {})
    remove_state(tmp_path)
    remove_state(tmp_path)
    assert read_state(tmp_path) is None


def test_a_second_provider_is_refused_and_one_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    refuse_second(tmp_path)
    write_state(tmp_path, [], {"draining": False})
    with pytest.raises(ConfigError, match=f"already running \\(pid {os.getpid()}\\)"):
        refuse_second(tmp_path)
    write_state(tmp_path, [], {"draining": True})
    with pytest.raises(ConfigError, match="draining"):
        refuse_second(tmp_path, 0)
    with ThreadPoolExecutor(1) as starting:
        waiting = starting.submit(refuse_second, tmp_path)
        remove_state(tmp_path)
        waiting.result(20)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "null"])
def test_a_broken_file_is_no_provider(tmp_path: Path, text: str) -> None:
    path_in(tmp_path).write_text(text)
    assert read_state(tmp_path) is None


@pytest.mark.parametrize(
    "change", [{"started_at": 1.0}, {"pid": "one"}, {"pid": -1}, {"pid": 2**40}, {"pid": None}, {"started_at": None}]
)
def test_a_state_that_does_not_fit_a_running_process_is_no_provider(tmp_path: Path, change: dict[str, Any]) -> None:
    write_state(tmp_path, [], {})
    path = path_in(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert read_state(tmp_path) is None


def test_the_state_of_a_dead_process_is_no_provider(tmp_path: Path) -> None:
    write_state(tmp_path, [], {})
    path = path_in(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as process:
        started_at = psutil.Process(process.pid).create_time()
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": process.pid, "started_at": started_at}))
        assert read_state(tmp_path) is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # A process that has ended is none, also while its parent has not asked how.
        assert read_state(tmp_path) is None
    assert read_state(tmp_path) is None


def test_an_identity_is_made_once(tmp_path: Path) -> None:
    made = provider_id(tmp_path / "data")
    assert str(uuid.UUID(made)) == made
    assert provider_id(tmp_path / "data") == made
    assert provider_id(tmp_path / "other") != made


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"provider_id": "x"}', '{"provider_id": 3}'])
def test_a_broken_identity_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "identity.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="delete it"):
        provider_id(tmp_path)
    assert path.read_text() == text


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_atomically(tmp_path / "file", text)
        assert (tmp_path / "file").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_status_tells_of_a_model_that_was_refused_as_of_one_that_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    on = {"state": "on", "lane_rows": 8, "lane_rows_from": "kept", "reason": None}
    counts = {"running": 0, "waiting": 0, "parked": 0}
    details = {
        "name": "me",
        "coordinators": [],
        "slots": [{"model": "here", "state": "idle", **counts}, {"model": "refused", "state": "failed", **counts}],
        "exact": {"here": on, "refused": {"state": "unavailable", "reason": "its experts are sorted"}},
        "failed": {"refused": {"reason": "its experts are sorted", "retry_in_s": None}},
    }
    print_status(DaemonState(1, 1.0, None, details))
    told = capsys.readouterr().out.splitlines()
    assert told[1:] == [
        "  here  idle: 0 running, 0 waiting, 0 parked",
        "    exact concurrency: on, in lanes of 8 rows (kept)",
        "  refused  failed: 0 running, 0 waiting, 0 parked",
        "    exact concurrency: unavailable: its experts are sorted",
    ]


def test_status_tells_why_a_model_has_failed_and_when_it_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    slots = [{"model": id, "state": "failed", "running": 0, "waiting": 0, "parked": 0} for id in ("dies", "nonsense")]
    failed = {
        "dies": {"reason": "its worker keeps dying (signal 9)", "retry_in_s": 41.6},
        "nonsense": {"reason": "its logits are not finite", "retry_in_s": None},
    }
    print_status(DaemonState(1, 1.0, None, {"name": "me", "coordinators": [], "slots": slots, "failed": failed}))
    told = capsys.readouterr().out.splitlines()
    assert told[2] == "    its worker keeps dying (signal 9); it is tried again in 42 s"
    assert told[5] == "    its logits are not finite"
