"""`darkbloom-py fleet simulate`: a fleet that is not there, for load tests and for planning one."""

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from provider import collector, options
from provider.cli import log_to_stderr
from provider.errors import ConfigError, WorkerError
from provider.lifetime import Lifetime
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.simulate.fleet import Plan, SimulatedFleet, Totals
from provider.simulate.machines import MACHINES, machines
from provider.tls import authorities
from provider.wire_limits import MOST_LABEL

app = typer.Typer(help="Simulate a fleet.", no_args_is_help=True, pretty_exceptions_enable=False)

MOST_PREFIX = MOST_LABEL - 16
SAY_EVERY_S = 5.0


@app.callback()
def fleet() -> None:
    """Keeps `simulate` a subcommand, as there is one alone."""


@app.command()
def simulate(
    providers: Annotated[int, typer.Option(help="How many.", min=1)],
    coordinator: Annotated[list[str], typer.Option(help="ws://HOST:PORT/ws/provider. May be repeated.")],
    token: Annotated[str, typer.Option(help="A provider token.", envvar=options.TOKEN_VARIABLE)],
    coordinator_ca: options.CoordinatorCa = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Each provider's models; only their facts are read.", metavar="PATH_OR_ID")
    ] = None,
    machine: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(MACHINES)}; several are dealt out in turn.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the providers' names begin with.")] = "sim",
    max_concurrent: Annotated[int, typer.Option(help="Chats of a model that run at once.", min=1)] = 8,
    seconds: Annotated[float | None, typer.Option(help="End after so long; default: at Ctrl-C.", min=0.1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end, one JSON object on stdout.")] = False,
    exit_when_closed: options.ExitWhenClosed = None,
) -> None:
    """Connect simulated providers to a coordinator: they answer with tokens that mean nothing, at the speed of the
    machines they stand for."""
    try:
        kinds = machines(machine or ["m3-max"], providers)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if len(name) > MOST_PREFIX:
        raise ConfigError(
            f"--name has {len(name)} characters: {MOST_PREFIX} at most, and each provider's number follows."
        )
    options.check_coordinators(coordinator)
    token = options.check_token(token)
    trusted = authorities(coordinator_ca)
    log_to_stderr()
    logging.getLogger("provider").setLevel(logging.WARNING)  # what one provider says at start, two thousand would
    logging.getLogger("provider.draft_news").setLevel(logging.ERROR)  # and that it does not draft
    with tempfile.TemporaryDirectory() as scratch:
        models = model or [BUNDLED_MODEL_ID]
        plan = Plan(name, coordinator, token, models, max_concurrent, Path(scratch), trusted)
        say: Callable[[Totals], None] = _ignore if as_json else _say
        collector.freeze()
        fleet = SimulatedFleet(kinds, plan)
        totals = uvloop.run(_run(fleet, seconds, exit_when_closed, say))
    typer.echo(json.dumps(asdict(totals)) if as_json else f"ended: {_told(totals)}")
    if not fleet.ever_connected:
        raise WorkerError("no provider was ever connected; the log above says why.")


async def _run(
    fleet: SimulatedFleet, seconds: float | None, parent_fd: int | None, say: Callable[[Totals], None]
) -> Totals:
    lifetime = Lifetime(parent_fd)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, lifetime.end)
    saying = asyncio.create_task(_keep_saying(fleet, say))
    running = asyncio.create_task(fleet.run())
    try:
        await lifetime.until_ending(asyncio.shield(running))
        return fleet.totals()
    finally:
        for task in (saying, running):
            task.cancel()
        await asyncio.gather(saying, running, return_exceptions=True)


async def _keep_saying(fleet: SimulatedFleet, say: Callable[[Totals], None]) -> None:
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        say(fleet.totals())


def _say(totals: Totals) -> None:
    typer.echo(_told(totals))


def _ignore(totals: Totals) -> None:
    pass


def _told(totals: Totals) -> str:
    return (
        f"{totals.connected} of {totals.providers} connected, {totals.running} running, {totals.requests} requests, "
        f"{totals.tokens} tokens, {totals.parks} parks"
    )
