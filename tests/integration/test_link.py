"""The provider's link against a coordinator played by the test, over a real WebSocket; the engine is simulated."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError

from provider.api.surface import Surface
from provider.config import ProviderConfig, read_config
from provider.link import Link, LinkRefused
from provider.protocol import (
    CLOSE_BAD_TOKEN,
    CLOSE_BAD_VERSION,
    Cancel,
    Hardware,
    InferenceRequest,
    LoadModel,
    Registered,
    Wire,
    encode,
)
from provider.residency import Residency
from provider.runner import InlineRunner
from provider.session import Identity

GIB = 2**30
IDENTITY = Identity(
    "6f2f6a53-5f0c-4a6b-b8cb-9a4cf5a0a9a1", "test", "0.9.0", "sim",
    Hardware(chip="none", memory_bytes=64 * GIB, memory_kind="host", cores=1),
)  # fmt: skip
BODY = {"model": "darkbloom-demo", "prompt": "hello", "max_tokens": 5, "ignore_eos": True, "temperature": 0}


class Coordinator:
    """One socket as the coordinator sees it."""

    def __init__(self, socket: ServerConnection) -> None:
        self._socket = socket

    async def say(self, message: Wire | str) -> None:
        await self._socket.send(message if isinstance(message, str) else encode(message))

    async def hear(self, *types: str) -> dict[str, Any]:
        """The next message of these types; others are passed over."""
        while True:
            message: dict[str, Any] = json.loads(await self._socket.recv())
            if message["type"] in types:
                return message

    async def welcome(self, **values: Any) -> dict[str, Any]:
        register = await self.hear("register")
        told = {"provider_id": register["provider_id"], "heartbeat_s": 0.05, "generation": 1, **values}
        await self.say(Registered.model_validate(told))
        return register

    async def takes_up(self, request_id: str, next_seq: int) -> dict[str, Any]:
        return await self.welcome(resume=[{"request_id": request_id, "next_seq": next_seq}])

    async def take(self, request_id: str, count: int) -> list[dict[str, Any]]:
        """Its next numbered frames."""
        kinds = ("inference_chunk", "inference_notice", "inference_complete", "inference_error")
        heard: list[dict[str, Any]] = []
        while len(heard) < count:
            message = await self.hear(*kinds)
            heard += [message] if message["request_id"] == request_id else []
        return heard

    def lose(self) -> None:
        self._socket.transport.abort()

    async def ask(
        self, request_id: str, deadline_ms: int = 60_000, endpoint: str = "/v1/completions", **body: Any
    ) -> None:
        request = InferenceRequest(
            request_id=request_id, endpoint=endpoint, body={**BODY, **body}, deadline_ms=deadline_ms
        )
        await self.say(request)

    async def answer(self, request_id: str) -> list[dict[str, Any]]:
        """Everything said of a request, to its end."""
        heard = []
        ends = ("inference_complete", "inference_error")
        while not heard or heard[-1]["type"] not in ends:
            message = await self.hear("inference_accepted", "inference_chunk", "inference_notice", *ends)
            if message["request_id"] == request_id:
                heard.append(message)
        return heard


Play = Callable[[Coordinator], Awaitable[None]]


def config_in(directory: Path, **flags: Any) -> ProviderConfig:
    return read_config(flags, ("darkbloom-demo",), backend="sim", data_dir=directory, file=directory / "none.toml")


@asynccontextmanager
async def residency_in(directory: Path, **flags: Any) -> AsyncIterator[Residency]:
    residency = Residency(config_in(directory, **flags), 64 * GIB, InlineRunner)
    await residency.start()
    try:
        yield residency
    finally:
        await residency.stop()


async def linked(
    residency: Residency, *plays: Play, on_link: Callable[[Link], None] = lambda _: None
) -> tuple[Link, BaseException | None]:
    """Runs a link against a coordinator that plays one scene per connection; returns how the link ended."""
    scenes = iter(plays)
    done = asyncio.Event()
    failed: list[BaseException] = []

    async def accept(socket: ServerConnection) -> None:
        try:
            await next(scenes)(Coordinator(socket))
        except ConnectionClosed:
            pass
        except BaseException as error:
            failed.append(error)
        if scenes.__length_hint__() == 0 or failed:
            done.set()

    async with serve(accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        surface = Surface(residency, time.time, Random(1))
        link = Link(f"ws://127.0.0.1:{port}/ws/provider", "dbk_x", IDENTITY, residency, surface, Random(1))
        on_link(link)
        running = asyncio.create_task(link.run(time.monotonic))
        ended = asyncio.create_task(done.wait())
        await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        error = running.exception() if running.done() else None
        for task in (running, ended):
            task.cancel()
        await asyncio.gather(running, ended, return_exceptions=True)
    if failed:
        raise failed[0]
    return link, error


def run(tmp_path: Path, *plays: Play, **flags: Any) -> tuple[Link, BaseException | None]:
    async def scene() -> tuple[Link, BaseException | None]:
        async with residency_in(tmp_path, **flags) as residency:
            return await linked(residency, *plays)

    return asyncio.run(scene())


def test_it_registers_first_and_beats_with_growing_numbers(tmp_path: Path) -> None:
    async def play(coordinator: Coordinator) -> None:
        register = await coordinator.welcome()
        assert (register["protocol"], register["version"]) == (1, "0.9.0")
        (model,) = register["models"]
        assert (model["id"], model["model_type"]) == ("darkbloom-demo", "qwen3_5")
        assert (model["kv_bytes_per_token"], model["state_bytes"], model["context_length"]) == (512, 107520, 4096)
        assert model["mtp"] == {"active": False, "reason": "engine_inactive"}
        beats = [await coordinator.hear("heartbeat") for _ in range(3)]
        assert [beat["capacity_seq"] for beat in beats] == [1, 2, 3]
        assert beats[0]["status"] == "idle"
        assert beats[0]["slots"][0]["max_concurrency"] == 8

    run(tmp_path, play)


def test_a_stream_is_accepted_numbered_without_holes_and_completed(tmp_path: Path) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", stream=True)
        heard = await coordinator.answer("j.1")
        assert heard[0]["type"] == "inference_accepted"
        assert heard[-1]["type"] == "inference_complete"
        assert heard[-1]["body"] is None
        assert heard[-1]["usage"]["completion_tokens"] == 5
        assert [one["seq"] for one in heard[1:]] == list(range(len(heard) - 1))
        assert heard[-2]["data"]["choices"][0]["finish_reason"] == "length"

    run(tmp_path, play)


def test_a_request_that_does_not_stream_gets_its_whole_object(tmp_path: Path) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1")
        accepted, complete = await coordinator.answer("j.1")
        assert accepted["type"] == "inference_accepted"
        assert complete["seq"] == 0
        assert complete["body"]["object"] == "text_completion"
        assert complete["body"]["usage"] == complete["usage"]

    run(tmp_path, play)


@pytest.mark.parametrize(
    ("body", "endpoint", "status", "code"),
    [
        ({"model": "other"}, "/v1/completions", 404, "model_not_found"),
        ({"max_tokens": 0}, "/v1/completions", 400, None),
        ({"prompt": [5] * 5000}, "/v1/completions", 400, "context_length_exceeded"),
        ({}, "/v1/nothing", 404, "not_found"),
    ],
)
def test_a_refusal_comes_before_accepting(
    tmp_path: Path, body: dict[str, Any], endpoint: str, status: int, code: str | None
) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", endpoint=endpoint, **body)
        (error,) = await coordinator.answer("j.1")
        assert error["status"] == status
        assert code in (None, error["code"])
        assert error["detail"]["type"]
        await coordinator.ask("j.2")
        assert (await coordinator.answer("j.2"))[-1]["type"] == "inference_complete"

    run(tmp_path, play)


def test_cancel_frees_the_place_and_says_no_more(tmp_path: Path) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("long.1", max_tokens=4000, stream=True)
        await coordinator.hear("inference_chunk")
        await coordinator.say(Cancel(request_id="long.1"))
        await coordinator.say(Cancel(request_id="unknown"))
        await coordinator.ask("next.1")
        assert (await coordinator.answer("next.1"))[-1]["type"] == "inference_complete"

    run(tmp_path, play, max_concurrent=1)


def test_a_deadline_ends_a_request_with_a_typed_error(tmp_path: Path) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        await coordinator.ask("j.1", deadline_ms=100, max_tokens=4000)
        error = (await coordinator.answer("j.1"))[-1]
        assert (error["status"], error["code"]) == (504, "deadline_exceeded")

    run(tmp_path, play)


def test_what_it_cannot_read_or_do_is_answered_or_passed_over(tmp_path: Path) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.welcome()
        for frame in ("{", "[]", '{"type": "from the future"}', '{"type": "cancel"}'):
            await coordinator.say(frame)
        await coordinator.say(LoadModel(model_id="another"))
        assert (await coordinator.hear("load_model_status"))["status"] == "failed"
        await coordinator.ask("j.1")
        assert (await coordinator.answer("j.1"))[-1]["type"] == "inference_complete"

    run(tmp_path, play)


@pytest.mark.parametrize("code", [CLOSE_BAD_TOKEN, CLOSE_BAD_VERSION])
def test_a_refusal_that_cannot_change_ends_the_link(tmp_path: Path, code: int) -> None:
    async def play(coordinator: Coordinator) -> None:
        await coordinator.hear("register")
        await coordinator._socket.close(code)

    _, error = run(tmp_path, play)
    assert isinstance(error, LinkRefused)


class Lost:
    """A socket that takes what is said, until it is lost."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.lost = asyncio.Event()

    async def send(self, message: str) -> None:
        self.reached.set()

    async def recv(self) -> str:
        await self.lost.wait()
        raise ConnectionClosedError(None, None)

    async def close(self, code: int) -> None:
        pass


@pytest.mark.parametrize("turns", range(8))
def test_it_ends_when_it_is_told_to_and_the_socket_is_lost_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """`turns` of the loop after the loss, each of which finds the link somewhere else on its way."""
    socket = Lost()

    @asynccontextmanager
    async def connect(*_: object, **__: object) -> AsyncIterator[Lost]:
        yield socket

    monkeypatch.setattr("provider.link.connect", connect)

    async def play() -> None:
        async with residency_in(tmp_path) as residency:
            surface = Surface(residency, time.time, Random(1))
            link = Link("ws://127.0.0.1:1/ws/provider", "dbk_x", IDENTITY, residency, surface, Random(1))
            running = asyncio.create_task(link.run(time.monotonic))
            await socket.reached.wait()
            socket.lost.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            ended, _ = await asyncio.wait({running}, timeout=10)
            running.cancel()
            assert ended, "it goes on dialling"
            assert running.cancelled()

    asyncio.run(play())


def test_draining_is_told_and_new_requests_are_refused_as_retryable(tmp_path: Path) -> None:
    async def scene() -> None:
        async with residency_in(tmp_path) as residency:

            async def play(coordinator: Coordinator) -> None:
                await coordinator.welcome()
                residency.draining = True
                while (await coordinator.hear("heartbeat"))["status"] != "draining":
                    pass
                await coordinator.ask("j.1")
                error = (await coordinator.answer("j.1"))[-1]
                assert (error["status"], error["code"], error["retryable"]) == (503, "draining", True)

            await linked(residency, play)

    asyncio.run(scene())
