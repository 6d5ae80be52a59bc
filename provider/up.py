"""`darkbloom-py up`: the whole system on one machine, as the processes it consists of.

The coordinator and the provider are started as the commands an operator would run, each in a session of its own, and
are ended by the closing of a pipe should this process be killed.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import typer

from provider import options, state
from provider.claim import Claim, claimed
from provider.config import data_directory, make_data_directory
from provider.errors import DarkbloomError
from provider.http_server import bind
from provider.lifetime import Lifetime
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.models.resolve import resolve_model

PROGRAM = (sys.executable, "-P", "-m", "provider.cli")
HOST = "127.0.0.1"
READY_S = 120.0
POLL_S = 0.1
END_S = 40.0
"""Longer than the drain of a child; past it the child is killed."""


class UpError(DarkbloomError):
    pass


@dataclass(frozen=True, slots=True)
class Plan:
    port: int
    data_dir: Path
    model: str
    model_id: str
    flags: list[str]
    api_key: str
    provider_token: str
    claim: Claim

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: asyncio.subprocess.Process


def up(
    port: Annotated[int, typer.Option(help="The coordinator's port.", min=1, max=65535)] = 8080,
    data_dir: options.DataDir = None,
    model: Annotated[str, typer.Option(help="A directory or a model id.", metavar="PATH_OR_ID")] = BUNDLED_MODEL_ID,
    context_length: options.ContextLength = None,
    kv_pool_tokens: options.KvPoolTokens = None,
    mtp_drafter_path: options.MtpDrafterPath = None,
    max_concurrent: options.MaxConcurrent = None,
    exact: options.Exact = None,
    mtp_mode: options.MtpMode = None,
    preempt_ram_gb: options.PreemptRamGb = None,
    preempt_disk_gb: options.PreemptDiskGb = None,
) -> None:
    """Run Postgres, a coordinator and a provider; prints a curl line when they are ready. Ctrl-C ends all of it."""
    flags = options.engine_flags(
        context_length, kv_pool_tokens, mtp_drafter_path, max_concurrent,
        exact, mtp_mode, preempt_ram_gb, preempt_disk_gb,
    )  # fmt: skip
    model_id, where = resolve_model(model).id, data_directory(data_dir)
    with _prepared(port, where) as claim:
        plan = Plan(
            port=port,
            data_dir=where,
            model=model,
            model_id=model_id,
            flags=[part for key, value in flags.items() if value is not None for part in (_flag(key), str(value))],
            api_key=new_secret(),
            provider_token=new_secret(),
            claim=claim,
        )
        asyncio.run(_run(plan))


@contextlib.contextmanager
def _prepared(port: int, data_dir: Path) -> Iterator[Claim]:
    """What would stop a part of the system is told before any is started. Raises ConfigError."""
    if not data_dir.exists():
        bind(HOST, port).close()  # before anything is made
    make_data_directory(data_dir)
    with claimed(data_dir) as claim:
        state.refuse_second(data_dir)
        bind(HOST, port).close()
        yield claim


def new_secret() -> str:
    return "dbk_" + secrets.token_urlsafe(32)


async def _run(plan: Plan) -> None:
    lifetime = Lifetime()
    async with _coordinator(plan) as coordinator, _provider(plan) as provider:
        lifetime.hurry = partial(_hurry, coordinator, provider)
        if await lifetime.until_ending(_until_ready(plan, coordinator, provider)):
            _announce(plan)
            # Returns only when told to end: a part that ends by itself is an error.
            await lifetime.until_ending(_watch(coordinator, provider))
        plan.claim.ending()
        print("Shutting down.", flush=True)
        # The coordinator goes first: it lets running answers finish, for which it needs the provider.
        await _end(coordinator.process)


@contextlib.asynccontextmanager
async def _coordinator(plan: Plan) -> AsyncIterator[Child]:
    arguments = ["coordinator", "serve", "--host", HOST, "--port", str(plan.port), "--data-dir", str(plan.data_dir)]
    secrets_told = {"DARKBLOOM_UP_API_KEY": plan.api_key, "DARKBLOOM_UP_PROVIDER_TOKEN": plan.provider_token}
    async with _child("coordinator", arguments, plan.claim, secrets_told) as child:
        try:
            yield child
        finally:
            await _end(child.process)
            if child.process.returncode is not None and child.process.returncode < 0:
                await _stop_postgres(plan)


async def _stop_postgres(plan: Plan) -> None:
    """A coordinator that was killed has left it running."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "coordinator", "stop-postgres", "--data-dir", str(plan.data_dir),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
        pass_fds=[plan.claim.fileno()],
    )  # fmt: skip
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await process.wait()


@contextlib.asynccontextmanager
async def _provider(plan: Plan) -> AsyncIterator[Child]:
    arguments = [
        "provider", "start", "--coordinator", f"ws://{HOST}:{plan.port}/ws/provider",
        "--model", plan.model, "--data-dir", str(plan.data_dir), *plan.flags,
    ]  # fmt: skip
    async with _child("provider", arguments, plan.claim, {options.TOKEN_VARIABLE: plan.provider_token}) as child:
        yield child


@contextlib.asynccontextmanager
async def _child(name: str, arguments: list[str], claim: Claim, told: dict[str, str]) -> AsyncIterator[Child]:
    """Secrets travel in the environment: a command line is there for every user to read."""
    theirs, ours = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM, *arguments, "--exit-when-closed", str(theirs),
            stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs, claim.fileno()], start_new_session=True,
            env={**os.environ, **told},
        )  # fmt: skip
        os.close(theirs)
        try:
            yield Child(name, process)
        finally:
            await _end(process)
    finally:
        os.close(ours)


def _hurry(coordinator: Child, provider: Child) -> None:
    """What runs is given up. The coordinator, asked again, still stops its Postgres."""
    with contextlib.suppress(ProcessLookupError):
        provider.process.kill()
        coordinator.process.terminate()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _until_ready(plan: Plan, *children: Child) -> None:
    """Until the endpoint lists the model; raises UpError when a part ends before, or it takes too long."""
    deadline = time.monotonic() + READY_S
    key = {"Authorization": f"Bearer {plan.api_key}"}
    # trust_env: a proxy has no business between two processes of one machine.
    async with httpx.AsyncClient(base_url=plan.url, headers=key, trust_env=False) as client:
        while time.monotonic() < deadline:
            for child in children:
                if child.process.returncode is not None:
                    raise UpError(f"The {child.name} could not start; its log above says why.")
            if await _serves(client, plan.model_id):
                return
            await asyncio.sleep(POLL_S)
    raise UpError(f"Not ready after {READY_S:.0f} s; the log above may say why.")


async def _serves(client: httpx.AsyncClient, model_id: str) -> bool:
    try:
        # First what is not logged at each call.
        if (await client.get("/health")).status_code != 200:
            return False
        answer = await client.get("/v1/models")
        return answer.status_code == 200 and any(one["id"] == model_id for one in answer.json()["data"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False


async def _watch(*children: Child) -> None:
    """Raises UpError, naming it, when a part of the system ends by itself."""
    waiting = {asyncio.create_task(child.process.wait()): child for child in children}
    try:
        ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    child, status = next((waiting[task], task.result()) for task in ended)
    how = f"exit status {status}" if status >= 0 else f"signal {-status}"
    raise UpError(f"The {child.name} has ended by itself ({how}); the log above may say why. Start again with `up`.")


def _announce(plan: Plan) -> None:
    body = (
        f'{{"model": "{plan.model_id}", "stream": true, '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    print(
        "\ndarkbloom-py is ready.\n\n"
        f"  URL      {plan.url}/v1\n  API key  {plan.api_key}\n  Model    {plan.model_id}\n\n"
        f"curl -N {plan.url}/v1/chat/completions -H 'Authorization: Bearer {plan.api_key}' "
        f"-H 'Content-Type: application/json' -d '{body}'\n",
        flush=True,
    )


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
