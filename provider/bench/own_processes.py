"""Processes of this installation, for as long as they are measured."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STOP_S = 30.0


@contextlib.contextmanager
def own_process(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path, module: str = "provider.cli"
) -> Iterator["subprocess.Popen[bytes]"]:
    """`darkbloom-py ARGUMENTS`, or another module that takes --exit-when-closed. It ends with this block, or with this
    process however that ends."""
    reading, writing = os.pipe()  # closed when this process is gone
    command = (sys.executable, "-m", module, *arguments, "--exit-when-closed", str(reading))
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[reading],
                env=dict(environment),
            )
    finally:
        os.close(reading)
    try:
        yield process
    finally:
        os.close(writing)
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
