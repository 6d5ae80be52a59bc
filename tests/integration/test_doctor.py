"""Doctor's probes against real ports, processes and sockets, and the command as a shell sees it."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner
from websockets.sync.server import ServerConnection, serve

from provider.doctor import doctor
from provider.probes import (
    PortState,
    Verdict,
    try_coordinator,
    try_directory,
    try_mlx,
    try_port,
    try_postgres,
)


@contextmanager
def coordinator(handler: Callable[[ServerConnection], None]) -> Iterator[str]:
    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/ws/provider"
        server.shutdown()
        thread.join()


def check_token(link: ServerConnection) -> None:
    """As a coordinator does: a bad token closes at once, a good one waits for the register."""
    assert link.request is not None
    if link.request.headers.get("Authorization") != "Bearer good":
        link.close(4401)
    else:
        for _ in link:
            pass


def test_a_good_token_stays_open_and_a_bad_one_is_told() -> None:
    with coordinator(check_token) as url:
        assert try_coordinator(url, "good").verdict is Verdict.ACCEPTED
        assert try_coordinator(url, "bad").verdict is Verdict.BAD_TOKEN
        assert try_coordinator(url, None).verdict is Verdict.BAD_TOKEN


def test_another_close_code_is_no_verdict_on_the_token() -> None:
    with coordinator(lambda link: link.close(1013)) as url:
        outcome = try_coordinator(url, "good")

    assert (outcome.verdict, outcome.error) == (
        Verdict.UNREACHABLE,
        "it closed the connection with code 1013",
    )


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/ws/provider", "http://127.0.0.1:1", "nonsense"])
def test_nothing_there_is_unreachable(url: str) -> None:
    outcome = try_coordinator(url, "x")

    assert outcome.verdict is Verdict.UNREACHABLE
    assert outcome.error


def test_a_port_is_free_until_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert try_port(port) is PortState.TAKEN
    assert try_port(port) is PortState.FREE


def test_mlx_computes_in_a_process_of_its_own() -> None:
    outcome = try_mlx()

    assert outcome.correct
    assert outcome.device


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "exit code -6"),
        ("raise ImportError('no libmlx')", "no libmlx"),
        ("import time; time.sleep(60)", "no answer within"),
        ("print('?')", "unexpected output"),
    ],
)
def test_a_device_that_crashes_or_hangs_is_a_finding(code: str, said: str) -> None:
    outcome = try_mlx((sys.executable, "-c", code), timeout_s=1)

    assert outcome.error is not None
    assert said in outcome.error


def test_the_embedded_postgres_tells_its_version() -> None:
    outcome = try_postgres({})

    assert outcome.version is not None
    assert "PostgreSQL" in outcome.version


def test_a_postgres_that_does_not_answer_is_an_error_without_the_password() -> None:
    outcome = try_postgres({"DARKBLOOM_DATABASE_URL": "postgresql+psycopg://u:hidden@127.0.0.1:1/db"})

    assert outcome.external
    assert outcome.error is not None
    assert "hidden" not in outcome.error


def test_a_data_directory_that_is_to_be_made_is_judged_by_its_parent(tmp_path: Path) -> None:
    assert try_directory(tmp_path / "a" / "b").writable
    (tmp_path / "file").touch()
    assert not try_directory(tmp_path / "file" / "b").writable
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_command_answers_in_one_json_object(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(doctor)
    home = {"HOME": str(tmp_path)}
    told = ["--json", "--data-dir", str(tmp_path), "--model", str(tmp_path), "--port", "1"]
    result = CliRunner().invoke(app, told, env=home)
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}

    assert result.exit_code == 1
    assert checks["model files"]["status"] == "fail"
    assert checks["model files"]["fix"]
    assert checks["mlx device"] == {**checks["mlx device"], "status": "pass", "fix": None}


def test_people_get_a_line_for_each_check(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(doctor)
    result = CliRunner().invoke(app, ["--data-dir", str(tmp_path)], env={"HOME": str(tmp_path)})

    assert "PASS model files: darkbloom-demo" in result.stdout
