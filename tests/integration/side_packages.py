"""Packages from the index that cannot, or should not, live in the environment of the tests: other major versions of the
SDKs, clients that users run, a fuzzer. Each set is installed once into a directory of its own beside that environment.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

UNREACHABLE = ("Temporary failure in name resolution", "Network is unreachable", "Connection refused", "timed out")
"""What pip says of an index that it cannot reach. Anything else is a fault of ours."""


def side_packages(*requirements: str) -> Path:
    """The directory of exactly these packages; what they need beyond is in the environment of the tests. Skips the
    test where the package index cannot be reached."""
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:16]
    directory = Path(sys.prefix) / "side" / key
    directory.parent.mkdir(exist_ok=True)
    with (directory.parent / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            _install(directory, requirements)
            (directory / "complete").touch()
    return directory


def _install(directory: Path, requirements: tuple[str, ...]) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", "--no-compile", "--upgrade", "--target", str(directory), *requirements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode and any(said in done.stderr for said in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {', '.join(requirements)}")
    assert done.returncode == 0, done.stderr


def environment(directory: Path) -> dict[str, str]:
    """With the packages of `directory` before those of the tests, and its programs before all others."""
    path = os.pathsep.join([str(directory / "bin"), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(directory)}


def run_beside(directory: Path, *arguments: str, timeout_s: float = 240, cwd: Path | None = None, **more: str) -> str:
    """What Python says with the packages of `directory`; a failure is shown whole. `more` is its environment."""
    env = {**environment(directory), **more}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout_s, cwd=cwd)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout
