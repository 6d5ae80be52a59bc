"""The coordinator as a process with its embedded Postgres: starts, ends, kills, and what is found again."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from coordinator.config import Bounds, Settings
from coordinator.errors import PostgresFailed
from coordinator.keys import hashed, new_secret
from coordinator.store import embedded, postmaster
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.lifetime import open_store
from coordinator.store.records import TokenKind
from coordinator.store.schema import migrate
from tests.integration.coordinator_harness import command, hurry, plain, process, scratch, told, typed
from tests.integration.processes import NO_TLS, until


@pytest.fixture(scope="module")
def seed() -> Iterator[Path]:
    """A cluster with the schema, made once: initdb takes most of a second."""
    with scratch() as directory:
        server = EmbeddedPostgres(directory)
        url = server.acquire()
        migrate(url)
        hurry(url)
        server.release()
        yield directory / "postgres"


@pytest.fixture
def empty_dir() -> Iterator[Path]:
    """Longer than a socket's path may be, and no shell would like it. No server outlives the test."""
    with scratch() as directory:
        directory = directory / 'a long $HOME of "data" & more' / ("x" * 100)
        yield directory
        server = server_of(directory)
        if server is not None:
            os.kill(server.pid, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(server.pid)], timeout=5)


@pytest.fixture
def data_dir(seed: Path, empty_dir: Path) -> Path:
    shutil.copytree(seed, empty_dir / "postgres")
    return empty_dir


def make_token(data_dir: Path) -> str:
    """As the command does, without the seconds of a new Python."""
    secret = new_secret()

    async def make() -> None:
        async with open_store(Settings(data_dir)) as store:
            await store.add_token(TokenKind.API, "test", hashed(secret), datetime.now(UTC))

    asyncio.run(make())
    return secret


def server_of(data_dir: Path) -> postmaster.Postmaster | None:
    return postmaster.running((data_dir / "postgres").resolve())


def secret_from(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def status(url: str, key: str, path: str = "/v1/models") -> int:
    return httpx.get(url + path, headers={"Authorization": f"Bearer {key}"}, verify=NO_TLS).status_code


def test_tokens_are_made_beside_a_running_serve_and_found_again(empty_dir: Path) -> None:
    data_dir = empty_dir
    where = ("--data-dir", str(data_dir))
    with process(*where) as (child, url):
        made = told("token", "create", "--kind", "api", "--name", "mine", *where)
        secret = secret_from(made)
        assert secret.startswith("dbk_")
        assert len(secret) >= 36
        assert made.stdout.count(secret) == 1
        assert status(url, secret) == 200
        listed = typed("token", "list", *where).stdout
        assert "mine" in listed
        assert secret not in listed
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
    assert server_of(data_dir) is None
    assert list(embedded.SOCKETS.glob("darkbloom-*")) == sockets_of_others(data_dir)
    with process(*where) as (_, url):
        assert status(url, secret) == 200
        assert typed("token", "revoke", "mine", *where).exit_code == 0
        assert typed("token", "revoke", "mine", *where).exit_code == 1
    stored = b"".join(path.read_bytes() for path in (data_dir / "postgres" / "base").rglob("*") if path.is_file())
    assert secret.encode() not in stored


def sockets_of_others(data_dir: Path) -> list[Path]:
    own = embedded.SOCKETS / f"darkbloom-{embedded._short_name(data_dir.resolve())}"
    return [path for path in embedded.SOCKETS.glob("darkbloom-*") if path != own]


def test_a_token_command_without_a_serve_leaves_nothing_running(data_dir: Path) -> None:
    secret_from(told("token", "create", "--kind", "provider", "--data-dir", str(data_dir)))
    assert server_of(data_dir) is None


@pytest.mark.parametrize("also_postgres", [False, True])
def test_data_is_found_again_after_kill_9(data_dir: Path, also_postgres: bool) -> None:
    where = ("--data-dir", str(data_dir))
    with process(*where) as (child, _):
        secret = make_token(data_dir)
        left_over = server_of(data_dir)
        assert left_over is not None
        child.kill()
        child.wait()
        if also_postgres:
            os.kill(left_over.pid, signal.SIGKILL)
    with process(*where) as (_, url):
        assert status(url, secret) == 200
        now = server_of(data_dir)
        assert now is not None
        assert (now.pid == left_over.pid) is not also_postgres
    assert server_of(data_dir) is None


def test_a_server_with_lost_sockets_is_started_anew(data_dir: Path) -> None:
    secret = make_token(data_dir)
    first, second = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    first.acquire()
    unreachable = server_of(data_dir)
    assert unreachable is not None
    for path in Path(unreachable.socket_dir).iterdir():
        path.unlink()
    assert knows(second.acquire(), secret)
    first.release()
    second.release()


def test_a_pid_file_that_names_another_program_does_not_stop_the_start(data_dir: Path) -> None:
    secret = make_token(data_dir)
    server = EmbeddedPostgres(data_dir)
    server.acquire()
    lines = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
    server.release()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        (data_dir / "postgres" / "postmaster.pid").write_text("\n".join([str(sleeper.pid), *lines[1:]]) + "\n")
        assert knows(server.acquire(), secret)
        server.release()
        assert sleeper.poll() is None
        sleeper.kill()


def knows(url: str, secret: str) -> bool:
    with psycopg.connect(plain(url)) as connection:
        found = connection.execute("select 1 from tokens where sha256 = %s", [hashed(secret)])
        return found.fetchone() is not None


def test_a_server_that_something_else_started_is_used_and_not_stopped(data_dir: Path) -> None:
    """The mark is removed, as if another had started it."""
    ours = EmbeddedPostgres(data_dir)
    ours.acquire()
    mark = (data_dir / "postgres.ours").read_text()
    (data_dir / "postgres.ours").unlink()
    make_token(data_dir)
    assert server_of(data_dir) is not None
    ours.release()
    assert server_of(data_dir) is not None
    (data_dir / "postgres.ours").write_text(mark)
    ours.acquire()
    ours.release()
    assert server_of(data_dir) is None


def test_the_last_user_stops_the_server(data_dir: Path) -> None:
    first, second = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    url = first.acquire()
    assert second.acquire() == url
    first.release()
    psycopg.connect(plain(url)).close()
    second.release()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(plain(url))


def test_a_server_that_a_killed_user_has_left_can_be_stopped(data_dir: Path) -> None:
    killed = EmbeddedPostgres(data_dir)
    killed.acquire()
    where = ("stop-postgres", "--data-dir", str(data_dir))
    in_use = typed(*where)
    assert (in_use.exit_code, "somebody uses it" in in_use.stderr) == (1, True)
    assert server_of(data_dir) is not None
    assert killed._users is not None
    assert killed._server is not None
    assert killed._server._child is not None
    killed._users.close()  # as the kernel does
    assert typed(*where).exit_code == 0
    assert server_of(data_dir) is None
    killed._server._child.wait()
    assert typed(*where).exit_code == 0


def test_up_secrets_are_stored_and_replace_the_last_ones(data_dir: Path) -> None:
    first, second = new_secret(), new_secret()
    where = ("--data-dir", str(data_dir))
    for key, former in ((first, None), (second, first)):
        environment = {"DARKBLOOM_UP_API_KEY": key, "DARKBLOOM_UP_PROVIDER_TOKEN": new_secret()}
        with process(*where, environment=environment) as (_, url):
            assert status(url, key) == 200
            assert former is None or status(url, former) == 401
    listed = typed("token", "list", *where).stdout.splitlines()
    live = [line.split()[1:3] for line in listed[1:] if line.endswith("live")]
    assert live == [["api", "up"], ["provider", "up"]]


def test_it_ends_with_whoever_holds_the_other_end_of_the_pipe(data_dir: Path) -> None:
    theirs, ours = os.pipe()
    arguments = ("--data-dir", str(data_dir), "--exit-when-closed", str(theirs))
    with process(*arguments, pass_fds=(theirs,)) as (child, _):
        os.close(theirs)
        assert child.poll() is None
        os.close(ours)
        assert child.wait(20) == 0
    assert server_of(data_dir) is None


def test_a_start_ends_before_it_is_done_when_the_pipe_closes(empty_dir: Path) -> None:
    """While initdb works, which is made aside and so may be killed."""
    theirs, ours = os.pipe()
    arguments = ("--port", "0", "--data-dir", str(empty_dir), "--exit-when-closed", str(theirs))
    child = subprocess.Popen(command("serve", *arguments), pass_fds=(theirs,), stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    until((empty_dir / "postgres.new").exists, what="initdb")
    os.close(ours)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 0, said
    assert said.splitlines()[-1].endswith(" stopped")
    assert " ready url=" not in said
    assert "Traceback" not in said
    assert not (empty_dir / "postgres").exists()
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if str(empty_dir) in " ".join(one.info["cmdline"] or [])
    ]


def test_a_server_whose_start_is_given_up_is_not_left_running_and_starts_again(data_dir: Path) -> None:
    given_up, again = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    with ThreadPoolExecutor(1) as starting:
        acquiring = starting.submit(given_up.acquire)
        until((data_dir / "postgres.users").exists, what="the start")
        given_up.give_up()
        with pytest.raises(PostgresFailed):
            acquiring.result(30)
    given_up.release()
    assert server_of(data_dir) is None
    again.acquire()
    again.release()


def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(data_dir: Path) -> None:
    for pause_s in (0.8, 1.3):
        child = subprocess.Popen(
            command("serve", "--port", "0", "--data-dir", str(data_dir)), stderr=subprocess.PIPE, text=True
        )
        time.sleep(pause_s)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
        assert server_of(data_dir) is None


def test_a_port_in_use_is_told_before_anything_is_started(empty_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = told("serve", "--port", str(taken.getsockname()[1]), "--data-dir", str(empty_dir))
    assert done.returncode == 1
    assert f"(pid {os.getpid()}) listens there; end it, wait until it has ended, or pass another --port." in done.stderr
    assert not empty_dir.exists()


def test_a_database_that_does_not_answer_is_told() -> None:
    done = told("token", "list", environment={"DARKBLOOM_DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/none"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: The database at 127.0.0.1:1 cannot be reached: ")
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_usage_errors_exit_with_2_and_bad_configuration_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("token", "create", "--kind", "emperor").exit_code == 2
    assert typed("serve", "--port", "x").exit_code == 2
    monkeypatch.setenv("DARKBLOOM_UP_API_KEY", "short")
    bad = typed("serve", "--port", "0")
    assert bad.exit_code == 1
    assert "DARKBLOOM_UP_API_KEY" in bad.stderr
    monkeypatch.delenv("DARKBLOOM_UP_API_KEY")
    nowhere = typed("token", "list", "--data-dir", "/dev/null/x")
    assert nowhere.exit_code == 1
    assert nowhere.stderr == "error: --data-dir /dev/null/x cannot be a directory: Not a directory.\n"


def test_a_postgres_that_is_killed_is_started_again(data_dir: Path) -> None:
    with process("--data-dir", str(data_dir)) as (child, url):
        killed = server_of(data_dir)
        assert killed is not None
        os.kill(killed.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while (server := server_of(data_dir)) is None or server.pid == killed.pid or not server.ready:
            assert time.monotonic() < deadline, "no server came back"
            time.sleep(0.05)
        secret = make_token(data_dir)
        assert status(url, secret) == 200
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
    assert server_of(data_dir) is None


@pytest.mark.parametrize(("soft", "hard", "most", "left"), [(64, 4096, 100, 134), (64, 128, 96, 128)])
def test_as_many_open_files_are_asked_for_as_its_providers_need_and_no_more_providers_taken_than_those_allow(
    soft: int, hard: int, most: int, left: int
) -> None:
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from coordinator.config import Bounds
from coordinator.open_files import allowed
print(allowed(Bounds(of_a_token=7, in_all=100)), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{Bounds(of_a_token=7, in_all=most)} {left}"
