"""`darkbloom-py local`: one provider's HTTP API, without a coordinator."""

import asyncio
import logging
import socket
from typing import Annotated

import typer
import uvloop

from provider import collector, options
from provider.cli import log_to_stderr
from provider.config import ProviderConfig, read_config
from provider.errors import ConfigError
from provider.hardware import Hardware, MemoryReader, SystemMemory, memory_in_use, read_hardware
from provider.http_server import HttpServer, bind, server_for
from provider.lifetime import Lifetime
from provider.local_floors import device_key, local_floors, read_floors
from provider.memory.floors import FloorTable, floor_table, shipped_table
from provider.models.checkpoint import read_checkpoint
from provider.models.resolve import resolve_model
from provider.parking.files import sweep
from provider.residency import Residency
from provider.status import Status

log = logging.getLogger(__name__)

DRAIN_S = 20.0
"""How long running chats may go on after the first signal; a second signal ends at once."""


def local(
    model: options.Model = None,
    backend: options.Backend = "mlx",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Ask clients for this key. May be repeated: each is good.")
    ] = None,
    rate_limit: Annotated[
        int | None,
        typer.Option(help="Generations (and counts of tokens) a minute of one key, or of one address without.", min=1),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="A web page's origin that may call, or '*'. May be repeated.")
    ] = None,
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
    """Serve models on this machine over an OpenAI-compatible HTTP API."""
    log_to_stderr()
    flags = options.engine_flags(
        context_length, kv_pool_tokens, mtp_drafter_path, max_concurrent,
        exact, mtp_mode, preempt_ram_gb, preempt_disk_gb,
    )  # fmt: skip
    api = {"api_key": api_key or None, "rate_limit": rate_limit, "cors_origin": cors_origin or None}
    config = read_config(flags, tuple(model or ()), backend=backend, data_dir=data_dir, api=api)
    if not config.models:
        raise ConfigError("no model is named: pass --model PATH_OR_ID (--model darkbloom-demo needs no download).")
    with bind(host, port) as sock:
        uvloop.run(_serve(config, sock, exit_when_closed))


def create_residency(config: ProviderConfig) -> Residency:
    """The models of this machine, sized by what it has."""
    hardware = read_hardware()
    kind = memory_in_use(hardware.memory_kind)
    for key in config.without_effect(kind):
        log.warning("config_without_effect key=%s", key)
    sweep(config.park_directory)
    reader = MemoryReader(kind)
    physical = reader.read().physical_bytes
    if physical is None:
        raise ConfigError("this machine's memory size cannot be read; `darkbloom-py doctor` says more.")

    async def read_memory() -> SystemMemory:
        return await asyncio.to_thread(reader.read)

    return Residency(config, physical, read_memory=read_memory, floors=_floors(config, hardware), memory_kind=kind)


def _floors(config: ProviderConfig, hardware: Hardware) -> FloorTable:
    """Shipped, and measured on this machine."""
    if not read_floors(config.data_dir):
        return shipped_table()
    named = [resolve_model(one) for one in config.models]
    here = {one.id: read_checkpoint(one.directory) for one in named}
    return floor_table(local_floors(config.data_dir, device_key(hardware), here))


async def _serve(config: ProviderConfig, sock: socket.socket, parent_fd: int | None) -> None:
    # The web framework takes half a second to import, which `provider ...` does not need of this module.
    from provider.api.access import Access
    from provider.api.app import create_app

    lifetime = Lifetime(parent_fd)
    residency = create_residency(config)
    access = Access(config.api.keys, config.api.rate_limit, config.api.origins)
    app = create_app(residency, Status(residency), access=access, notices=config.engine.notices)
    server = server_for(app)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        if await lifetime.until_ending(residency.start()):
            host, port = sock.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            collector.freeze()
            log.info("serving models=%s url=http://%s:%d/v1", ",".join(config.models), address, port)
            await lifetime.ending.wait()
        log.info("draining open=%d", sum(slot.open for slot in residency.slots))
        await residency.drain(DRAIN_S)
    finally:
        await _close(server, serving, residency)


async def _close(server: HttpServer, serving: "asyncio.Task[None]", residency: Residency) -> None:
    await residency.stop()
    server.should_exit = True
    await serving
