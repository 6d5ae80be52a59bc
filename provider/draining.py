"""`darkbloom-py provider drain`: the provider of a data directory finishes what it has accepted, however long that
takes, takes nothing more, and ends.

It differs from `stop` in its patience alone: `stop` gives what runs a grace time, this gives it all it needs.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol

import typer

from provider import options, state
from provider.config import data_directory
from provider.errors import WorkerError
from provider.residency import Residency

DRAIN_SIGNAL = signal.SIGUSR1
POLL_S = 0.2
TOLD_EVERY_S = 5.0

Wait = Annotated[bool, typer.Option(help="Return when the provider has ended; otherwise at once.")]


def drain(wait: Wait = True, data_dir: options.DataDir = None) -> None:
    """Let the provider of this machine finish what it has accepted, take no more, and end.

    Ctrl-C stops the waiting, not the draining. `provider stop` ends it sooner."""
    where = data_directory(data_dir)
    running = state.read_state(where)
    if running is None:
        typer.echo(f"No provider of {where} is running.")
        return
    if not running.details.get("takes_drain"):
        raise WorkerError(f"the provider (pid {running.pid}) is of a release that cannot drain: use `provider stop`.")
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(running.pid, DRAIN_SIGNAL)
    if not wait:
        typer.echo(f"The provider (pid {running.pid}) is draining.")
        return
    try:
        _follow(where)
    except KeyboardInterrupt:
        typer.echo(f"The provider (pid {running.pid}) goes on draining.")
        raise typer.Exit(1) from None
    typer.echo(f"The provider (pid {running.pid}) has finished what it had, and ended.")


def _follow(data_dir: Path) -> None:
    """Until it has ended, with a word now and then on what it still has."""
    told_at = time.monotonic()
    while (running := state.read_state(data_dir)) is not None:
        if time.monotonic() - told_at >= TOLD_EVERY_S:
            told_at = time.monotonic()
            typer.echo(f"{_left(running)} requests are still running.")
        time.sleep(POLL_S)


def _left(running: state.DaemonState) -> int:
    """As it has last said itself."""
    return sum(slot["running"] + slot["waiting"] + slot["parked"] for slot in running.details.get("slots", []))


class Answers(Protocol):
    async def flush(self) -> None:
        """Returns when every request has been answered and the answer has left."""


async def finish(residency: Residency, links: Sequence[Answers]) -> None:
    """Takes no more and lets everything finish that was accepted."""
    await residency.drain(None)
    await asyncio.gather(*(link.flush() for link in links))
