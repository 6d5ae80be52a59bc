"""How a provider's connection begins, goes wrong and ends."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from coordinator.keys import new_secret
from provider.protocol import (
    MAX_FRAME_BYTES,
    ModelsUpdate,
    ProtocolErrorMessage,
    Registered,
    Routability,
    encode,
    parse_from_coordinator,
)
from tests.integration.coordinator_harness import (
    GIB,
    MODEL,
    QUICK,
    Running,
    advert,
    chat,
    coordinator,
    dialled,
    heartbeat,
    postgres,
    provider,
    registration,
    rows,
    slot,
    uuid_of,
    with_timings,
)

__all__ = ["postgres"]


async def close_code(socket: ClientConnection) -> int | None:
    await asyncio.wait_for(socket.wait_closed(), 5)
    return socket.close_code


async def state_of(running: Running, provider_id: str = "p1") -> dict[str, Any]:
    async with running.client() as client:
        return dict((await client.get(f"/v1/fleet/{provider_id}")).json())


async def said(socket: ClientConnection) -> Any:
    """The next message, but for what a provider is told of its own routability meanwhile."""
    async with asyncio.timeout(5):
        while isinstance(message := parse_from_coordinator(await socket.recv()), Routability):
            pass
        return message


def test_registration_is_answered_and_shown(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running:
            resume = [{"request_id": "old.1", "next_seq": 4}]
            async with provider(running, name="mini", resume=resume) as played:
                welcome = played.registered
                assert (welcome.provider_id, welcome.heartbeat_s) == (uuid_of("p1"), 5)
                assert welcome.gone == ["old.1"]
                shown = await state_of(running, "mini")
                assert (shown["id"], shown["state"], shown["backend"]) == (uuid_of("p1"), "alive", "script")
                assert shown["slots"][0]["model"] == MODEL
                assert shown["models"][0]["routable"]
            assert (await state_of(running, "mini"))["state"] == "disconnected"
            query = "select provider_id, name, version from providers"
            await asyncio.sleep(0.2)
            assert await asyncio.to_thread(rows, running.database, query) == [(uuid_of("p1"), "mini", "0.9.0")]

    asyncio.run(scene())


def test_a_bad_token_closes_with_4401(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running:
            for token in (new_secret(), running.api_key, running.admin_key, "-"):
                async with dialled(running, token) as socket:
                    assert await close_code(socket) == 4401

    asyncio.run(scene())


def test_an_unsupported_version_closes_with_4406(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, dialled(running) as socket:
            await socket.send(encode(registration("p1", protocol=2)))
            assert await close_code(socket) == 4406

    asyncio.run(scene())


MALFORMED: list[str | bytes] = [
    "no json",
    "[]",
    "{}",
    '{"type": 3}',
    '{"type": "heartbeat"}',
    b'{"type": "heartbeat"}',
    "[" * 100_000,
]


def test_a_frame_that_is_no_utf8_closes_its_connection_and_the_log_has_it_once(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, provider_id="other") as other:
            for _ in range(3):
                async with dialled(running) as socket:
                    await socket.send(b"\xff\xfe", text=True)
                    assert await close_code(socket) == 1007
            await other.beat()
            assert (await state_of(running, "other"))["state"] == "alive"

    asyncio.run(scene())
    said = [record.getMessage() for record in caplog.records if "utf8" in record.getMessage()]
    assert said == ["frame_not_utf8 times=1"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_malformed_frame_is_answered_and_the_third_closes(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, provider_id="other"):
            for frame in MALFORMED:
                await sends_thrice(running, frame)
            async with running.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

    asyncio.run(scene())


async def sends_thrice(running: Running, frame: str | bytes) -> None:
    async with dialled(running) as socket:
        await socket.send(encode(registration("p1")))
        assert isinstance(await said(socket), Registered)
        for _ in range(2):
            await socket.send(frame)
            assert isinstance(await said(socket), ProtocolErrorMessage)
        await socket.send(encode(heartbeat(1)))
        await socket.send(frame)
        assert isinstance(await said(socket), ProtocolErrorMessage)
        assert await close_code(socket) == 1002
    assert (await state_of(running))["state"] == "disconnected"


def test_register_comes_first_and_once(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running:
            async with dialled(running) as socket:
                await socket.send(encode(heartbeat(1)))
                assert isinstance(await said(socket), ProtocolErrorMessage)
                nameless = registration("p1").model_copy(update={"provider_id": "p1"})
                await socket.send(encode(nameless))
                assert await said(socket) == ProtocolErrorMessage(message="register: provider_id: must be a UUID")
                await socket.send(encode(registration("p1")))
                assert isinstance(await said(socket), Registered)
            async with dialled(running) as socket:
                await socket.send(encode(registration("p1")))
                assert isinstance(await said(socket), Registered)
                await socket.send(encode(registration("p1")))
                assert isinstance(await said(socket), ProtocolErrorMessage)
                assert (await state_of(running))["state"] == "alive"

    asyncio.run(scene())


def test_a_socket_that_never_registers_is_closed(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(register_within_s=0.1)
        async with coordinator(postgres, timings) as running, dialled(running) as socket:
            assert await close_code(socket) == 1002

    asyncio.run(scene())


def test_an_unknown_type_is_ignored(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played:
            for _ in range(5):
                await played.socket.send(json.dumps({"type": "from_the_future", "x": 1}))
            await played.beat(status="draining")
            await asyncio.sleep(0.1)
            assert (await state_of(running))["state"] == "draining"
            assert played.heard == []

    asyncio.run(scene())


def test_an_oversize_frame_closes_this_socket_only(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, provider_id="other"):
            async with provider(running) as played:
                with suppress(ConnectionClosed):
                    await played.socket.send("x" * (MAX_FRAME_BYTES + 1))
                await asyncio.wait_for(played.socket.wait_closed(), 10)
                assert played.socket.close_code == 1009
            async with running.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

    asyncio.run(scene())


def test_a_frame_of_more_than_a_megabyte_passes(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played:
            await played.socket.send(json.dumps({"type": "later", "x": "y" * 3 * 2**20}))
            await played.beat()
            async with running.client() as client:
                body = chat(user="u" * 3 * 2**20)
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

    asyncio.run(scene())


def test_the_newest_connection_of_a_provider_wins(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as older, provider(running) as newer:
            await asyncio.wait_for(older.socket.wait_closed(), 5)
            assert older.socket.close_code == 4409
            assert newer.registered.generation > older.registered.generation
            shown = await state_of(running)
            assert (shown["state"], shown["generation"]) == ("alive", newer.registered.generation)
            async with running.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

    asyncio.run(scene())


def test_a_silent_socket_is_suspect_then_closed_as_lost(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, QUICK) as running, provider(running) as played:
            await asyncio.sleep(0.5)
            assert (await state_of(running))["state"] == "suspect"
            assert (await state_of(running))["models"][0]["reason"] == "provider_suspect"
            await played.beat()
            await asyncio.sleep(0.05)
            assert (await state_of(running))["state"] == "alive"
            await asyncio.wait_for(played.socket.wait_closed(), 5)
            assert played.socket.close_code == 4408
            await asyncio.sleep(0.9)
            assert (await state_of(running))["state"] == "lost"

    asyncio.run(scene())


def test_a_models_update_replaces_the_list(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played, running.client() as client:
            await played.say(ModelsUpdate(models=[advert("other")]))
            await asyncio.sleep(0.1)
            models = (await client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in models] == ["other"]
            got = await client.post("/v1/chat/completions", json=chat())
            assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")
            assert got.json()["error"]["message"].endswith("Served: other.")
            await played.socket.close()
            await asyncio.sleep(0.1)
            for got in (await client.post("/v1/chat/completions", json=chat()), await client.get("/v1/models/x")):
                assert got.status_code == 404
                assert got.json()["error"]["message"].endswith("Served: none.")

    asyncio.run(scene())


def test_an_older_heartbeat_is_discarded(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, beats=False) as played:
            await played.say(heartbeat(7, slots=[slot(running=2)]))
            await played.say(heartbeat(6, slots=[slot(running=4)]))
            await asyncio.sleep(0.1)
            assert (await state_of(running))["slots"][0]["running"] == 2

    asyncio.run(scene())


WAYS_OUT: list[tuple[dict[str, Any], str]] = [
    ({"status": "draining"}, "provider_draining"),
    ({"slots": [slot(state="failed")]}, "slot_failed"),
    ({"slots": [slot(kv_bytes_per_token=1024)]}, "no_kv_budget"),
    ({"slots": [slot(state="unloading")], "free_for_load_bytes": GIB}, "memory_cap"),
    ({"slots": [], "free_for_load_bytes": -1}, "memory_cap"),
]


def test_who_cannot_take_a_request_says_why(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played, running.client() as client:
            for beat, code in WAYS_OUT:
                await played.beat(**beat)
                await asyncio.sleep(0.1)
                got = await client.post("/v1/chat/completions", json=chat())
                assert (got.status_code, got.json()["error"]["code"]) == (503, code)
                assert int(got.headers["retry-after"]) > 0
                assert (await state_of(running))["models"][0]["reason"] == code

    asyncio.run(scene())


def test_shutdown_waits_for_streams_and_closes_sockets_with_1001(postgres: str) -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async def slow(played: Any, request: Any) -> None:
            await played.accept(request)
            await played.chunk(request, 0, "one ")
            await go.wait()
            await played.chunk(request, 1, "two")
            await played.complete(request, 2)

        async with coordinator(postgres, QUICK) as running, provider(running, slow) as played:
            async with running.client() as client:
                request = client.build_request("POST", "/v1/chat/completions", json=chat(stream=True))
                response = await client.send(request, stream=True)
                running.stop.ask()
                await asyncio.sleep(0.1)
                assert (await client.get("/health")).json() == {"status": "draining"}
                refused = await client.post("/v1/chat/completions", json=chat())
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                go.set()
                body = (await response.aread()).decode()
                assert "two" in body
                assert body.endswith("data: [DONE]\n\n")
            await asyncio.wait_for(played.socket.wait_closed(), 5)
            assert played.socket.close_code == 1001
            await running.ended

    asyncio.run(scene())


def test_a_stream_that_outlives_the_drain_ends_with_a_typed_error(postgres: str) -> None:
    async def scene() -> None:
        async def endless(played: Any, request: Any) -> None:
            await played.accept(request)
            await played.chunk(request, 0, "one ")

        timings = with_timings(drain_s=0.2)
        async with coordinator(postgres, timings) as running, provider(running, endless):
            async with running.client() as client:
                request = client.build_request("POST", "/v1/chat/completions", json=chat(stream=True))
                response = await client.send(request, stream=True)
                running.stop.ask()
                body = (await response.aread()).decode()
            assert '"code":"draining"' in body
            assert body.endswith("data: [DONE]\n\n")
            assert (await running.usage())[0][:2] == ("failed", "draining")

    asyncio.run(scene())
