"""`darkbloom-py up`: from nothing to a streamed answer, found again at the next start, and nothing left behind."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from coordinator.store import postmaster
from tests.integration.client import MODEL, Api, Stream, counting
from tests.integration.processes import Command, free_port, gone, run, running, until

READY_WITHIN_S = 60.0
SECRET = re.compile(r"dbk_[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Up:
    command: Command
    api: Api
    ready_s: float

    @property
    def curl(self) -> str:
        (line,) = [line for line in self.command.output.splitlines() if line.startswith("curl ")]
        return line


def database_of(home: Path) -> postmaster.Postmaster | None:
    return postmaster.running((home / "data" / "postgres").resolve())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One data directory for all starts of this module, as a user has one. No Postgres outlives it."""
    home = tmp_path_factory.mktemp("up")
    yield home
    server = database_of(home)
    if server is not None:
        psutil.Process(server.pid).kill()


@contextlib.contextmanager
def up(home: Path) -> Iterator[Up]:
    port = free_port()
    began = time.monotonic()
    with running(home / f"up-{port}.log", "up", "--port", str(port), "--data-dir", str(home / "data")) as command:
        until(lambda: "curl " in command.output or command.process.poll() is not None, READY_WITHIN_S, "the curl line")
        ready_s = time.monotonic() - began
        assert command.process.poll() is None, command.output
        print(f"ready after {ready_s:.1f} s")
        yield Up(command, Api(f"http://127.0.0.1:{port}", SECRET.findall(command.output)[0]), ready_s)


def everything(command: Command) -> list[psutil.Process]:
    """All processes of the system, Postgres's among them."""
    found = [psutil.Process(command.process.pid), *command.descendants()]
    names = {one.name() for one in found}
    assert any("postgres" in name for name in names), names
    assert len(found) >= 5, names
    return found


def test_from_nothing_to_a_streamed_answer_and_back_to_nothing(home: Path) -> None:
    with up(home) as system:
        processes, database = everything(system.command), database_of(home)
        assert database is not None
        worker = system.command.find("provider.worker")
        assert not any(SECRET.search(" ".join(one.cmdline())) for one in processes)
        assert worker.ppid() == system.command.find("provider", "start").pid
        events = answer_of(system.curl)
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
        assert text == "The capital of France is Paris."
        with system.api.sdk() as client:
            assert [one.id for one in client.models.list()] == [MODEL]
            chunks = list(client.chat.completions.create(**counting(1, 12), stream=True))
        assert "".join(one.choices[0].delta.content or "" for one in chunks).startswith("1, 2, 3")
        (shown,) = system.api.get("/v1/fleet").json()["providers"]
        assert shown["models"][0]["routable"]
        stream = Stream(system.api, counting(1, 100)).begun()
        assert system.command.interrupt(40) == 0
        assert stream.ended().finish_reason == "length"
        assert stream.done
        assert gone(processes)
        assert database_of(home) is None
        assert not Path(database.socket_dir).exists()
        assert set(SECRET.findall(system.command.output)) == {system.api.key}
        assert "Traceback" not in system.command.output
    logs = [path for path in (home / "data").glob("*.log") if path.is_file()]
    assert not any(SECRET.search(path.read_text(errors="replace")) for path in logs)


def answer_of(curl: str) -> list[dict[str, Any]]:
    """The events that the printed line gets, run as a user pastes it; where there is no curl, as curl reads it."""
    if shutil.which("curl") is not None:
        said = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60, check=True).stdout
    else:
        command, no_buffer, url, *options = shlex.split(curl)
        assert (command, no_buffer, options[::2]) == ("curl", "-N", ["-H", "-H", "-d"])
        headers = dict(one.split(": ") for one in options[1:-1:2])
        said = httpx.post(url, headers=headers, content=options[-1].encode(), timeout=60).text
    *events, last = [line.removeprefix("data: ") for line in said.splitlines() if line]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


def test_a_killed_coordinator_ends_it_and_a_second_start_finds_its_data_and_a_killed_provider_ends_it(
    home: Path,
) -> None:
    with up(home) as first:
        made = run(home / "log", "coordinator", "token", "create", "--kind", "api", "--data-dir", str(home / "data"))
        assert made.returncode == 0, made.stderr
        mine = Api(first.api.url, made.stdout.split()[-1])
        assert mine.get("/v1/models").status_code == 200
        identity = first.api.get("/v1/fleet").json()["providers"][0]["id"]
        processes = everything(first.command)
        first.command.find("coordinator", "serve").kill()
        assert first.command.process.wait(60) == 1
        *_, last = first.command.output.splitlines()
        assert last.startswith("error: The coordinator has ended by itself (signal 9)")
        assert gone(processes), "its Postgres too"
        assert database_of(home) is None
    with up(home) as second:
        processes = everything(second.command)
        assert Api(second.api.url, mine.key).text(counting(3, 8)).startswith("3, 4")
        assert Api(second.api.url, first.api.key).get("/v1/models").status_code == 401
        assert second.api.get("/v1/models").status_code == 200
        assert second.api.get("/v1/fleet").json()["providers"][0]["id"] == identity

        second.command.find("provider", "start").kill()
        assert second.command.process.wait(40) == 1
        *_, last = second.command.output.splitlines()
        assert last.startswith("error: The provider has ended by itself (signal 9)")
        assert gone(processes)


def test_kill_9_takes_everything_but_postgres_with_it_and_a_second_ctrl_c_hurries(home: Path) -> None:
    with up(home) as killed:
        processes = everything(killed.command)
        stream = Stream(killed.api, counting(1, 100)).begun()
        os.kill(killed.command.process.pid, signal.SIGKILL)
        killed.command.process.wait()
        parts = [one for one in processes if "postgres" not in name_of(one)]
    with up(home) as hurried:
        assert gone(parts), "the next start has waited for all of them"
        assert stream.ended(5).finish_reason == "length"
        processes = everything(hurried.command)
        stream = Stream(hurried.api, counting(1, 4000)).begun()
        hurried.command.process.send_signal(signal.SIGINT)
        until(lambda: "Shutting down." in hurried.command.output, 5, "the drain")
        time.sleep(0.5)
        assert stream.running
        assert hurried.command.interrupt(10) == 0
        assert not stream.ended(5).finish_reason
        assert gone(processes)
        assert database_of(home) is None


@pytest.mark.parametrize("moment", ["provider.cli coordinator", "postgres", "provider.worker"])
def test_ctrl_c_in_the_middle_of_a_start_leaves_nothing(tmp_path: Path, moment: str) -> None:
    with running(tmp_path / "log", "up", "--port", str(free_port()), "--data-dir", str(tmp_path / "data")) as command:
        until(lambda: any(moment in line for line in command.lines()), what=moment)
        processes = command.descendants()
        assert command.interrupt(40) == 0
        assert gone(processes)
        assert database_of(tmp_path) is None
        assert "Traceback" not in command.output


def name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def test_what_keeps_it_from_starting_is_one_clear_line(home: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path / "log", "up", "--port", port, "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()

    (tmp_path / "file").write_text("")
    done = run(tmp_path / "log", "up", "--port", str(free_port()), "--data-dir", str(tmp_path / "file"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--data-dir" in done.stderr
