"""A coordinator on a real port over a real Postgres, and scripted providers that dial it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import Result
from typer.testing import CliRunner
from websockets.asyncio.client import ClientConnection, connect

from coordinator.cli import app
from coordinator.config import Pace, Timings
from coordinator.config import settings as read_settings
from coordinator.keys import hashed, new_secret
from coordinator.serve import Stop, bind, run
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.postgres import Store
from coordinator.store.records import TokenKind
from coordinator.store.schema import migrate
from provider.protocol import (
    MAX_FRAME_BYTES,
    FromCoordinator,
    Hardware,
    Heartbeat,
    InferenceAccepted,
    InferenceChunk,
    InferenceComplete,
    InferenceError,
    InferenceNotice,
    InferenceRequest,
    ModelAd,
    MtpStatus,
    NoticeKind,
    Register,
    Registered,
    Slot,
    Wire,
    encode,
    parse_from_coordinator,
)

QUICK = Timings(
    heartbeat_s=0.1, suspect_after_s=0.4, lost_after_s=0.8, resume_within_s=0.8, failover_after_s=0.2,
    accept_within_s=2, drain_s=3,
)  # fmt: skip
MODEL = "demo"
GIB = 2**30


# -- the database


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a migrated database for this session, emptied for each coordinator."""
    with scratch() as directory:
        embedded = EmbeddedPostgres(directory)
        url = embedded.acquire()
        migrate(url)
        hurry(url)
        yield url
        embedded.release()


def hurry(url: str) -> None:
    """This cluster need not survive a power cut."""
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute("alter system set fsync = off")
        connection.execute("select pg_reload_conf()")


@contextmanager
def scratch() -> Iterator[Path]:
    """Not pytest's own: every session of it shuts that to all but its user, and root's Postgres is another."""
    with tempfile.TemporaryDirectory(prefix="darkbloom-test-") as directory:
        yield Path(directory)


def new_database(postgres: str) -> str:
    name = f"t{os.urandom(6).hex()}"
    with psycopg.connect(plain(postgres), autocommit=True) as connection:
        connection.execute(f"create database {name}")  # type: ignore[arg-type]
    return postgres.replace("@/postgres?", f"@/{name}?")


async def new_tokens(database: str, kinds: Sequence[TokenKind] = (TokenKind.API, TokenKind.PROVIDER)) -> list[str]:
    """Their secrets, one of each kind."""
    secrets = [new_secret() for _ in kinds]
    store = Store(database)
    for kind, secret in zip(kinds, secrets, strict=True):
        await store.add_token(kind, "test", hashed(secret), datetime.now(UTC))
    await store.close()
    return secrets


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(plain(url)) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


# -- the coordinator


@dataclass(frozen=True)
class Running:
    """A coordinator in this process."""

    url: str
    database: str
    api_key: str
    admin_key: str
    provider_token: str
    stop: Stop
    ended: asyncio.Task[None]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """Of an API client, or of whoever has `key`."""
        headers = {"Authorization": f"Bearer {key or self.api_key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=20, verify=False)

    async def usage(self) -> list[tuple[Any, ...]]:
        """Job outcomes so far; they are written behind the answers."""
        query = "select outcome, code, attempts, chunks, prompt_tokens, completion_tokens from usage"
        for _ in range(500):
            found = await asyncio.to_thread(rows, self.database, query)
            if found:
                return found
            await asyncio.sleep(0.02)
        return []


@asynccontextmanager
async def coordinator(
    postgres: str,
    timings: Timings | None = None,
    keep_desired: bool = False,
    data_dir: Path | None = None,
    beside: Running | None = None,
    pace: Pace | None = None,
    environment: dict[str, str] | None = None,
) -> AsyncIterator[Running]:
    """`beside` another one: over its database as it is, with its keys."""
    if data_dir is None:
        with scratch() as made:
            async with coordinator(postgres, timings, keep_desired, made, beside, pace, environment) as running:
                yield running
        return
    told = read_settings(environment or {}, data_dir=data_dir, database_url=postgres, port=0)
    settings = replace(told, timings=timings or Timings(), pace=pace or Pace())
    if beside is not None:
        secrets = [beside.api_key, beside.admin_key, beside.provider_token]
    else:
        secrets = await _tokens(postgres, "" if keep_desired else ", desired_models, desired_revisions")
    listener = bind(settings.host, 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop = Stop()
    ended = asyncio.create_task(run(settings, listener, stop))
    try:
        await healthy(url, ended)
        yield Running(url, postgres, *secrets, stop, ended)
    finally:
        stop.ask()
        stop.ask()
        await asyncio.wait({ended})
    ended.result()


async def _tokens(database: str, emptied: str) -> list[str]:
    with psycopg.connect(plain(database)) as connection:
        connection.execute(f"truncate tokens, usage, providers, drains{emptied} cascade")  # type: ignore[arg-type]
    return await new_tokens(database, (TokenKind.API, TokenKind.ADMIN, TokenKind.PROVIDER))


async def healthy(url: str, ended: asyncio.Task[None]) -> None:
    async with httpx.AsyncClient(verify=False) as client:
        while not ended.done():
            try:
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.02)
    ended.result()


# -- scripted providers


def advert(model: str = MODEL, **values: Any) -> ModelAd:
    told = {
        "id": model,
        "model_type": "qwen3_5",
        "size_bytes": GIB,
        "context_length": 4096,
        "kv_bytes_per_token": 1024,
        "state_bytes": 4096,
        "mtp": MtpStatus(active=False),
    }
    return ModelAd.model_validate({**told, **values})


def slot(model: str = MODEL, **values: Any) -> Slot:
    return Slot.model_validate({"model": model, "state": "idle", "max_concurrency": 4, **values})


def uuid_of(name: str) -> str:
    """The identity of the scripted provider of that name; a UUID is its own."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def registration(provider_id: str, **values: Any) -> Register:
    return Register.model_validate(
        {
            "protocol": 1,
            "provider_id": uuid_of(provider_id),
            "name": provider_id,
            "version": "0.9.0",
            "backend": "script",
            "hardware": Hardware(chip="test", memory_bytes=8 * GIB, memory_kind="host", cores=2),
            "models": [advert()],
            **values,
        }
    )


def heartbeat(seq: int, status: str = "idle", slots: list[Slot] | None = None, **reported: Any) -> Heartbeat:
    """`slots` None: the model is loaded and idle. `reported` is of the memory."""
    memory = {
        "physical_bytes": 8 * GIB,
        "effective_cap_bytes": 6 * GIB,
        "active_bytes": GIB,
        "cache_bytes": 0,
        "activation_reserve_bytes": 0,
        "free_for_load_bytes": 4 * GIB,
        **reported,
    }
    beat = {"status": status, "capacity_seq": seq, "memory": memory, "slots": [slot()] if slots is None else slots}
    return Heartbeat.model_validate(beat)


@dataclass
class Provider:
    """A scripted provider on a real socket. `heard` is all that the coordinator has said."""

    socket: ClientConnection
    provider_id: str
    registered: Registered
    heard: list[FromCoordinator] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    beats: int = 0

    async def say(self, message: Wire) -> None:
        await self.socket.send(encode(message))

    async def beat(self, **values: Any) -> None:
        self.beats += 1
        await self.say(heartbeat(self.beats, **values))

    async def accept(self, request: InferenceRequest) -> None:
        await self.say(InferenceAccepted(request_id=request.request_id))

    async def chunk(self, request: InferenceRequest, seq: int, text: str) -> None:
        await self.say(InferenceChunk(request_id=request.request_id, seq=seq, data=piece(text)))

    async def notice(self, request: InferenceRequest, seq: int, kind: NoticeKind) -> None:
        await self.say(InferenceNotice(request_id=request.request_id, seq=seq, kind=kind))

    async def complete(
        self, request: InferenceRequest, seq: int, body: dict[str, Any] | None = None, tokens: int = 3
    ) -> None:
        usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
        await self.say(
            InferenceComplete(
                request_id=request.request_id, seq=seq, body=body and {**body, "usage": usage}, usage=usage
            )
        )

    async def fail(self, request: InferenceRequest, seq: int = 0, **values: Any) -> None:
        error = {
            "status": 503,
            "code": "loading",
            "message": "not now",
            "retryable": True,
            "request_id": request.request_id,
            "seq": seq,
            **values,
        }
        await self.say(InferenceError.model_validate(error))

    async def hears(self, kind: type[Wire], count: int = 1) -> Any:
        """The `count`-th message of that type, waiting for it."""
        async with asyncio.timeout(5):
            while len(found := [each for each in self.heard if isinstance(each, kind)]) < count:
                self.news.clear()
                await self.news.wait()
        return found[count - 1]


Script = Callable[[Provider, InferenceRequest], Awaitable[None]]


def piece(text: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


def whole(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}


async def counts(provider: Provider, request: InferenceRequest) -> None:
    """A well-behaved answer: one, two, three."""
    await provider.accept(request)
    if not request.body.get("stream"):
        return await provider.complete(request, 0, whole("one two three"))
    for seq, word in enumerate(["one ", "two ", "three"]):
        await provider.chunk(request, seq, word)
    return await provider.complete(request, 3)


async def stays_silent(provider: Provider, request: InferenceRequest) -> None:
    pass


def ws_url(url: str) -> str:
    return url.replace("http", "ws", 1) + "/ws/provider"


@asynccontextmanager
async def dialled(running: Running, token: str | None = None) -> AsyncIterator[ClientConnection]:
    """A raw socket with the token, before any register."""
    headers = {"Authorization": f"Bearer {token or running.provider_token}"}
    async with connect(
        ws_url(running.url), additional_headers=headers, max_size=MAX_FRAME_BYTES, close_timeout=1
    ) as socket:
        yield socket


@asynccontextmanager
async def provider(
    running: Running, script: Script = counts, provider_id: str = "p1", *, beats: bool = True, **values: Any
) -> AsyncIterator[Provider]:
    """Registered and beating once; `script` runs for each request."""
    async with dialled(running) as socket:
        await socket.send(encode(registration(provider_id, **values)))
        welcome = parse_from_coordinator(await socket.recv())
        assert isinstance(welcome, Registered)
        played = Provider(socket, provider_id, welcome)
        if beats:
            await played.beat()
        playing = asyncio.create_task(_play(played, script))
        try:
            yield played
        finally:
            playing.cancel()
            await asyncio.wait({playing})


async def _play(played: Provider, script: Script) -> None:
    async with asyncio.TaskGroup() as tasks:
        async for frame in played.socket:
            message = parse_from_coordinator(frame)
            played.heard.append(message)
            played.news.set()
            if isinstance(message, InferenceRequest):
                tasks.create_task(_perform(script, played, message))


async def _perform(script: Script, played: Provider, request: InferenceRequest) -> None:
    await script(played, request)


# -- requests


def chat(stream: bool = False, **values: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "stream": stream, **values}


def events(body: str) -> list[str]:
    """The events of a stream, comments included."""
    return [event for event in body.split("\n\n") if event]


def text_of(stream: list[str]) -> str:
    pieces = [json.loads(event[6:]) for event in stream if event.startswith("data: {")]
    return "".join(each["choices"][0]["delta"]["content"] for each in pieces if "choices" in each)


# -- the coordinator as a process


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "coordinator", *arguments]


def told(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}
    )


def typed(*arguments: str) -> Result:
    """Runs a command to its end in this process."""
    return CliRunner().invoke(app, arguments)


@contextmanager
def process(
    *arguments: str, environment: dict[str, str] | None = None, pass_fds: tuple[int, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`coordinator serve` on a free port, ready; killed at the end if it still runs."""
    child = subprocess.Popen(
        command("serve", "--port", "0", *arguments),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        pass_fds=pass_fds,
    )
    try:
        yield child, _ready_url(child)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)


def _ready_url(child: subprocess.Popen[str]) -> str:
    assert child.stderr is not None
    said = []
    for line in child.stderr:
        said.append(line)
        if " ready url=" in line:
            return line.split("url=")[1].split()[0]
    raise AssertionError("".join(said))


def with_timings(**values: float) -> Timings:
    return replace(Timings(), **values)
