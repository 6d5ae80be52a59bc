"""`darkbloom-py provider ...`: joins a fleet. `start` is the composition root of the fleet's side of a provider."""

import asyncio
import contextlib
import json
import logging
import os
import platform
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any

import typer
import uvloop
from pydantic import ValidationError

from provider import collector, options, state
from provider.api.surface import Surface
from provider.cli import log_to_stderr
from provider.config import ProviderConfig, data_directory, make_data_directory, read_config
from provider.draining import DRAIN_SIGNAL, drain, finish
from provider.errors import ConfigError, WorkerError
from provider.exact_status import exact_object
from provider.hardware import memory_in_use, read_hardware, read_system_memory
from provider.identity import provider_id
from provider.lifetime import Lifetime
from provider.link import Link, LinkRefused
from provider.liveness import await_end
from provider.local import DRAIN_S, create_residency
from provider.operations import Operations
from provider.protocol import Hardware, encode
from provider.residency import Residency
from provider.session import Identity, Session
from provider.tls import authorities
from provider.wire_limits import MOST_NAMED

log = logging.getLogger(__name__)

app = typer.Typer(help="Join this machine to a fleet.", no_args_is_help=True, pretty_exceptions_enable=False)

STATE_EVERY_S = 1.0
STOP_WAIT_S = DRAIN_S + 15.0
FLUSH_S = 2.0
DETACH_WAIT_S = 120.0

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
def start(
    coordinator: Annotated[list[str] | None, typer.Option(help="ws://HOST:PORT/ws/provider. May be repeated.")] = None,
    token: Annotated[str | None, typer.Option(help="A provider token.", envvar=options.TOKEN_VARIABLE)] = None,
    coordinator_ca: options.CoordinatorCa = None,
    model: options.Model = None,
    name: Annotated[str | None, typer.Option(help="What the fleet calls this machine; default: its host name.")] = None,
    backend: options.Backend = "mlx",
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background, logging to a file.")] = False,
    context_length: options.ContextLength = None,
    kv_pool_tokens: options.KvPoolTokens = None,
    mtp_drafter_path: options.MtpDrafterPath = None,
    max_concurrent: options.MaxConcurrent = None,
    exact: options.Exact = None,
    mtp_mode: options.MtpMode = None,
    preempt_ram_gb: options.PreemptRamGb = None,
    preempt_disk_gb: options.PreemptDiskGb = None,
    data_dir: options.DataDir = None,
    exit_when_closed: options.ExitWhenClosed = None,
) -> None:
    """Serve models of this machine through a coordinator, in the foreground."""
    log_to_stderr()
    flags = options.engine_flags(
        context_length, kv_pool_tokens, mtp_drafter_path, max_concurrent,
        exact, mtp_mode, preempt_ram_gb, preempt_disk_gb,
    )  # fmt: skip
    config = read_config(
        flags, tuple(model or ()), tuple(coordinator or ()), name, backend, data_dir, coordinator_ca=coordinator_ca
    )
    if not config.coordinators:
        raise ConfigError("no coordinator is named: pass --coordinator ws://HOST:PORT/ws/provider.")
    options.check_coordinators(config.coordinators)
    trusted = authorities(config.coordinator_ca)
    token = options.check_token(token)
    if not config.models:
        raise ConfigError("no model is named: pass --model PATH_OR_ID (--model darkbloom-demo needs no download).")
    if len(config.models) > MOST_NAMED:
        raise ConfigError(
            f"{len(config.models)} models are named: a provider advertises {MOST_NAMED} at most; name fewer."
        )
    make_data_directory(config.data_dir)
    state.refuse_second(config.data_dir)
    if detach:
        _detach(config.data_dir, token)
    else:
        uvloop.run(_serve(config, token, trusted, exit_when_closed))


@app.command()
def stop(data_dir: options.DataDir = None) -> None:
    """End the provider of this machine: it takes no more requests and finishes those it has."""
    where = data_directory(data_dir)
    running = state.read_state(where)
    if running is None:
        typer.echo(f"No provider of {where} is running.")
        return
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(running.pid, signal.SIGTERM)
    if not await_end(running.pid, running.started_at, STOP_WAIT_S):
        raise WorkerError(f"the provider (pid {running.pid}) has not ended in {STOP_WAIT_S:.0f} s.")
    typer.echo(f"Stopped the provider (pid {running.pid}).")


app.command()(drain)


@app.command()
def status(as_json: Json = False, data_dir: options.DataDir = None) -> None:
    """What the provider of this machine is doing. Exit 1 when none is running."""
    where = data_directory(data_dir)
    running = state.read_state(where)
    if as_json:
        known: dict[str, Any] = {} if running is None else {"pid": running.pid, **running.details}
        typer.echo(json.dumps({"running": running is not None, **known}))
    elif running is None:
        typer.echo(f"No provider of {where} is running.")
    else:
        print_status(running)
    if running is None:
        raise typer.Exit(1)


def print_status(running: state.DaemonState) -> None:
    doing = "draining" if running.details.get("draining") else "running"
    typer.echo(f"Provider {running.details['name']} is {doing} (pid {running.pid}).")
    for link in running.details["coordinators"]:
        said = "connected" if link["connected"] else f"not connected: {link['reason']}"
        typer.echo(f"  {link['url']}  {said}")
        for model, told in link["routability"].items():
            verdict = "routable" if told["routable"] else f"not routable: {told['reason']} {told['detail'] or ''}"
            typer.echo(f"    {model}  {verdict}")
    exact, failed = running.details.get("exact", {}), running.details.get("failed", {})
    for slot in running.details["slots"]:
        counts = f"{slot['running']} running, {slot['waiting']} waiting, {slot['parked']} parked"
        typer.echo(f"  {slot['model']}  {slot['state']}: {counts}")
        why, exactness = failed.get(slot["model"]), exact.get(slot["model"])
        if why is not None and (exactness is None or why["reason"] != exactness["reason"]):
            typer.echo(f"    {why_failed(why)}")
        typer.echo(f"    exact concurrency: {_exactness(exactness)}")
    for model in sorted(exact.keys() - {slot["model"] for slot in running.details["slots"]}):
        typer.echo(f"  {model}  not loaded")
        typer.echo(f"    exact concurrency: {_exactness(exact[model])}")


def why_failed(told: Mapping[str, Any]) -> str:
    left_s = told["retry_in_s"]
    return f"{told['reason']}{'' if left_s is None else f'; it is tried again in {left_s:.0f} s'}"


def _exactness(told: Mapping[str, Any] | None) -> str:
    if told is None:  # the model has just come or gone
        return "unknown"
    match told["state"]:
        case "on":
            return f"on, in lanes of {told['lane_rows']} rows ({told['lane_rows_from']})"
        case state:
            return f"{state}{'' if told['reason'] is None else ': ' + told['reason']}"


async def _serve(config: ProviderConfig, token: str, trusted: ssl.SSLContext | None, parent_fd: int | None) -> None:
    lifetime = Lifetime(parent_fd)
    lifetime.drain_on(DRAIN_SIGNAL)
    residency = create_residency(config)
    identity = _identity(config)
    _check_registration(identity, residency)
    surface = Surface(residency, time.time, SystemRandom())
    operations = Operations(residency)
    links = [
        Link(url, token, identity, residency, surface, SystemRandom(), operations, trusted=trusted)
        for url in config.coordinators
    ]
    keeping = asyncio.create_task(_keep_state(config.data_dir, identity, residency, links))
    try:
        if await lifetime.until_ending(residency.start()):
            collector.freeze()
            dialling = asyncio.create_task(_dial(links))
            if await lifetime.until_ending(_until_told_to_drain(dialling, lifetime)):
                await lifetime.until_ending(finish(residency, links))
            await _drain(residency, links)
            refused = dialling.exception() if dialling.done() and not dialling.cancelled() else None
            dialling.cancel()
            await asyncio.gather(dialling, return_exceptions=True)
            if refused is not None:
                raise refused
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await operations.stop()
        await residency.stop()
        state.remove_state(config.data_dir)


def _check_registration(identity: Identity, residency: Residency) -> None:
    """Before anything is loaded. Raises ConfigError for what no coordinator would read."""
    try:
        encode(Session(identity).register(residency.advertised()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{where} {str(first['input'])[:80]!r} cannot be told to a coordinator: {first['msg']}"
        ) from None


async def _until_told_to_drain(dialling: asyncio.Task[None], lifetime: Lifetime) -> None:
    """Raises what ends the dialling for good."""
    told = asyncio.create_task(lifetime.draining.wait())
    try:
        await asyncio.wait({dialling, told}, return_when=asyncio.FIRST_COMPLETED)
        if dialling.done():
            await dialling
    finally:
        told.cancel()


async def _drain(residency: Residency, links: list[Link]) -> None:
    """The links stay up while running requests finish, and until the last of their frames has left."""
    residency.draining = True
    for link in links:
        link.beat()
    await residency.drain(DRAIN_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await asyncio.gather(*(link.flush() for link in links))


async def _dial(links: list[Link]) -> None:
    """Runs every link; ends, with its reason, only when all coordinators have refused for good."""
    results = await asyncio.gather(*(link.run(time.monotonic) for link in links), return_exceptions=True)
    refusals = [one for one in results if isinstance(one, LinkRefused)]
    for one in results:
        if isinstance(one, BaseException) and not isinstance(one, LinkRefused):
            raise one
    raise LinkRefused("; ".join(str(one) for one in refusals))


async def _keep_state(data_dir: Path, identity: Identity, residency: Residency, links: list[Link]) -> None:
    while True:
        capacity = await residency.capacity()
        details = {
            "name": identity.name,
            "provider_id": identity.provider_id,
            "draining": residency.draining,
            "takes_drain": True,
            "coordinators": [
                {"url": one.state.url, "connected": one.state.connected, "reason": one.state.reason,
                 "routability": one.state.routability}
                for one in links
            ],
            "slots": [one.model_dump() for one in capacity.slots],
            "failed": {one.id: {"reason": one.reason, "retry_in_s": one.slot.standing.retry_in_s}
                       for one in residency.served if one.status == "failed"},
            "exact": {one.id: exact_object(one) for one in residency.served},
            "memory": capacity.memory.model_dump(),
            "resident": {one.id: one.slot.resident_bytes for one in residency.occupancy.residents},
            "last_load_error": None if residency.last_load_error is None else asdict(residency.last_load_error),
        }  # fmt: skip
        state.write_state(data_dir, residency.advertised_ids if residency.started else None, details)
        await asyncio.sleep(STATE_EVERY_S)


def _identity(config: ProviderConfig) -> Identity:
    facts = read_hardware()
    kind = memory_in_use(facts.memory_kind)
    return Identity(
        provider_id=provider_id(config.data_dir),
        name=config.provider.name or platform.node() or "provider",
        version=version("darkbloom-py"),
        backend=config.backend,
        hardware=Hardware(
            chip=facts.chip or "unknown",
            memory_bytes=read_system_memory(kind).physical_bytes or 0,
            memory_kind=kind,
            cores=facts.cores or 0,
        ),
    )


def _detach(data_dir: Path, token: str) -> None:
    """Starts the same command in a session of its own; returns once it knows how its coordinator answers."""
    log_path = data_dir / "provider.log"
    arguments = [one for one in sys.argv[1:] if one != "--detach"]
    with log_path.open("ab") as output:
        begins = output.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "provider.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, options.TOKEN_VARIABLE: token},
        )
    deadline = time.monotonic() + DETACH_WAIT_S
    while not _has_dialled(state.read_state(data_dir)):
        if child.poll() is not None:
            raise WorkerError(f"the provider could not start{_last_error(log_path, begins)}; log: {log_path}")
        if time.monotonic() > deadline:
            raise WorkerError(f"the provider is not up after {DETACH_WAIT_S:.0f} s: see {log_path}.")
        time.sleep(0.1)
    typer.echo(f"The provider runs in the background (pid {child.pid}); log: {log_path}")


def _has_dialled(running: state.DaemonState | None) -> bool:
    """Whether a link is up, or has failed for now and is being tried again."""
    links = [] if running is None else running.details["coordinators"]
    return any(link["connected"] or link["reason"] for link in links)


def _last_error(log_path: Path, begins: int) -> str:
    """What the log, from that byte on, ends with."""
    lines = log_path.read_bytes()[begins:].decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.startswith("error: ")), None)
    return "" if last is None else f" ({last.removeprefix('error: ')})"
