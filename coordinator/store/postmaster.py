"""What Postgres says of itself: the lines of a data directory's postmaster.pid."""

from dataclasses import dataclass
from pathlib import Path

import psutil

NO_SUCH_PID = "99999999"
"""Above every limit on process ids (Linux: 2**22, macOS: 99 998)."""


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A server as its pid file describes it; the server itself may be gone."""

    pid: int
    started_at: str
    port: int
    socket_dir: str
    ready: bool

    @property
    def mark(self) -> str:
        """Names this start of this server, and no other."""
        return f"{self.pid} {self.started_at}"

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={self.socket_dir}&port={self.port}"


def running(cluster: Path) -> Postmaster | None:
    """The server that runs on this data directory, if one does."""
    described = _read(cluster)
    if described is None or not _serves(described.pid, cluster):
        return None
    return described


def disown_reused_pid(cluster: Path) -> None:
    """Lets Postgres start although another program now has the pid of its dead predecessor.

    Only the pid is replaced: the file also names the shared memory by which Postgres finds out whether
    processes of the predecessor are still at work.
    """
    described = _read(cluster)
    if described is None or not psutil.pid_exists(described.pid) or _serves(described.pid, cluster):
        return
    path = cluster / "postmaster.pid"
    rest = path.read_text().splitlines()[1:]
    path.write_text("\n".join([NO_SUCH_PID, *rest]) + "\n")


def _read(cluster: Path) -> Postmaster | None:
    """None also while the file is still being written."""
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
        return Postmaster(
            pid=int(lines[0]),
            started_at=lines[2].strip(),
            port=int(lines[3]),
            socket_dir=lines[4].strip(),
            ready=lines[7].strip() == "ready",
        )
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _serves(pid: int, cluster: Path) -> bool:
    try:
        process = psutil.Process(pid)
        return process.name() == "postgres" and Path(process.cwd()) == cluster
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    except psutil.AccessDenied:
        # Another user's process: Postgres itself judges whether it is a server of this directory.
        return True
