"""What a client gets when it asks wrongly, or when the store or the fleet is away."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from coordinator.keys import new_secret
from coordinator.store import postmaster
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.postgres import Store
from coordinator.store.schema import migrate
from tests.integration.coordinator_harness import (
    MODEL,
    Running,
    chat,
    coordinator,
    dialled,
    postgres,
    provider,
    scratch,
    with_timings,
)

__all__ = ["postgres"]

MIB = 2**20


def error_of(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "code", "param"}
    return response.status_code, error["type"], error["code"]


def test_keys_are_judged_by_kind(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client() as client:
            del client.headers["Authorization"]
            say = {
                "none": {},
                "unknown": {"Authorization": f"Bearer {new_secret()}"},
                "provider": {"Authorization": f"Bearer {running.provider_token}"},
                "admin": {"x-api-key": running.admin_key},
                "api": {"x-api-key": running.api_key},
            }
            status = {
                path: {kind: (await client.get(path, headers=headers)).status_code for kind, headers in say.items()}
                for path in ("/v1/models", "/v1/fleet")
            }
            assert status["/v1/models"] == status["/v1/fleet"]
            assert status["/v1/fleet"] == {"none": 401, "unknown": 401, "provider": 403, "admin": 200, "api": 200}
            got = await client.post("/v1/chat/completions", json=chat(), headers=say["admin"])
            assert error_of(got) == (403, "permission_error", "wrong_key_kind")
            got = await client.post("/v1/chat/completions", json=chat(), headers=say["unknown"])
            assert error_of(got) == (401, "authentication_error", "invalid_api_key")

    asyncio.run(scene())


BODIES: list[tuple[bytes, str]] = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"\xff\xfe{}", "invalid_json"),
    (b"[]", "invalid_json"),
    (b'{"model": "demo", "x": NaN}', "invalid_json"),
    (b'{"model": "demo", "x": "\\ud800"}', "invalid_json"),
    (b'{"model": "demo", "x": ' + b"[" * 100_000, "invalid_json"),
    (b'{"model": "demo", "x": ' + b"1" * 10_000 + b"}", "invalid_json"),
    (b"{}", "missing_required_parameter"),
    (b'{"model": null}', "missing_required_parameter"),
    (b'{"model": 3}', "invalid_value"),
    (b'{"model": ""}', "invalid_value"),
    (b'{"model": "' + b"m" * 1025 + b'"}', "invalid_value"),
    (b'{"model": "demo", "temperature": 1e999}', "invalid_json"),
    (b'{"model": "demo", "stream": "yes"}', "invalid_value"),
]


def test_an_invalid_body_is_400_and_never_422(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running), running.client() as client:
            for path in ("/v1/chat/completions", "/v1/completions"):
                for body, code in BODIES:
                    got = await client.post(path, content=body)
                    assert error_of(got) == (400, "invalid_request_error", code), body[:40]
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

    asyncio.run(scene())


@pytest.mark.parametrize("chunked", [False, True])
def test_an_oversized_body_is_413(postgres: str, chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * MIB

    async def scene() -> None:
        async with coordinator(postgres) as running, running.client() as client:
            content: Any = pieces() if chunked else b" " * 17 * MIB
            got = await client.post("/v1/chat/completions", content=content)
            assert error_of(got) == (413, "invalid_request_error", "body_too_large")

    asyncio.run(scene())


def test_a_body_of_16_mib_passes_whole(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running), running.client() as client:
            body = b'{"model": "demo", "user": "' + b"u" * (16 * MIB - 29) + b'"}'
            assert len(body) == 16 * MIB
            assert (await client.post("/v1/chat/completions", content=body)).status_code == 200

    asyncio.run(scene())


def test_a_body_that_cannot_be_sent_on_harms_nobody(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played, running.client() as client:
            deep = b'{"model": "demo", "x": ' + b"[" * 800 + b"]" * 800 + b"}"
            assert error_of(await client.post("/v1/completions", content=deep))[0] == 400
            many = b'{"model": "demo", "x": [' + b"1e15," * 3 * MIB + b"1]}"
            assert error_of(await client.post("/v1/completions", content=many))[2] == "body_too_complex"
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            assert played.socket.close_code is None
            assert (await client.get("/v1/fleet/p1")).json()["requests_held"] <= 1

    asyncio.run(scene())


def test_unknown_models_and_routes_answer_in_openai_form(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client() as client:
            got = await client.post("/v1/chat/completions", json=chat())
            assert error_of(got) == (404, "invalid_request_error", "model_not_found")
            assert error_of(await client.get("/v1/models/x"))[2] == "model_not_found"
            assert error_of(await client.get("/v1/fleet/x")) == (
                404,
                "invalid_request_error",
                "provider_not_found",
            )
            assert error_of(await client.get("/nowhere")) == (404, "invalid_request_error", "not_found")
            got = await client.get("/v1/chat/completions")
            assert error_of(got) == (405, "invalid_request_error", "method_not_allowed")
            assert got.headers["allow"] == "POST"

    asyncio.run(scene())


def test_a_lost_model_is_unavailable_rather_than_unknown(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, with_timings(away_s=0.2)) as running, running.client() as client:
            async with provider(running):
                assert (await client.get(f"/v1/models/{MODEL}")).json()["context_length"] == 4096
            got = await client.post("/v1/chat/completions", json=chat())
            assert error_of(got) == (503, "service_unavailable", "provider_disconnected")
            assert got.headers["retry-after"]

    asyncio.run(scene())


def test_a_request_id_is_echoed_or_made(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client() as client:
            got = await client.get("/health", headers={"X-Request-ID": "mine-1"})
            assert got.headers["x-request-id"] == "mine-1"
            made = (await client.get("/nowhere", headers={"X-Request-ID": "x" * 500})).headers["x-request-id"]
            assert uuid.UUID(made)

    asyncio.run(scene())


def test_health_metrics_and_the_description_need_no_key(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running), running.client() as client:
            await client.post("/v1/chat/completions", json=chat(stream=True))
            del client.headers["Authorization"]
            assert (await client.get("/health")).json() == {"status": "ok"}
            page = (await client.get("/metrics")).text
            assert 'darkbloom_providers{state="alive"} 1.0' in page
            assert 'darkbloom_jobs_total{outcome="completed"} 1.0' in page
            assert "darkbloom_chunks_relayed_total 3.0" in page
            paths = (await client.get("/openapi.json")).json()["paths"]
            assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/fleet"} <= set(paths)
            assert (await client.get("/docs")).status_code == 200

    asyncio.run(scene())


def test_a_revoked_key_is_refused_soon(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(key_fresh_s=0.1)
        async with coordinator(postgres, timings) as running, running.client() as client:
            assert (await client.get("/v1/models")).status_code == 200
            store = Store(postgres)
            await store.revoke_tokens("test", datetime.now(UTC))
            await store.close()
            for _ in range(250):
                if (await client.get("/v1/models")).status_code == 401:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("it is taken for ever")

    asyncio.run(scene())


def test_known_keys_work_while_the_store_is_down_and_others_get_503() -> None:
    async def scene(directory: Path, url: str) -> None:
        timings = with_timings(key_fresh_s=0.1, flush_s=0.1)
        async with coordinator(url, timings) as running, running.client() as client:
            assert (await client.get("/v1/fleet")).status_code == 200
            server = postmaster.running((directory / "postgres").resolve())
            assert server is not None
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
            assert (await client.get("/v1/fleet")).status_code == 200
            got = await client.get("/v1/fleet", headers={"Authorization": f"Bearer {running.admin_key}"})
            assert error_of(got) == (503, "service_unavailable", "store_unavailable")
            assert got.headers["retry-after"]
            with pytest.raises(ConnectionClosed) as closed:
                async with dialled(running) as socket:
                    await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            assert (await client.get("/health")).json() == {"status": "ok"}

    with scratch() as directory:
        server = EmbeddedPostgres(directory)
        url = server.acquire()
        migrate(url)
        asyncio.run(scene(directory, url))
        server.release()


async def broken_uploads(running: Running) -> None:
    """One that ends too early, and one whose chunks are none."""
    host, port = running.url.removeprefix("http://").split(":")
    for rest in ("Content-Length: 99\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nno length\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        key = f"Authorization: Bearer {running.api_key}"
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{key}\r\n{rest}".encode())
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()


def test_no_key_and_no_prompt_is_logged(postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> str:
        async with coordinator(postgres) as running, provider(running), running.client() as client:
            body = chat(messages=[{"role": "user", "content": "a very private prompt"}])
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            await client.get("/v1/models", headers={"Authorization": f"Bearer {new_secret()}"})
            await broken_uploads(running)
            return running.api_key

    with caplog.at_level("DEBUG", logger="coordinator"):
        key = asyncio.run(scene())
    assert "request request_id=" in caplog.text
    assert "ERROR" not in {record.levelname for record in caplog.records}
    assert caplog.text.count("status=499") == 2
    assert key not in caplog.text
    assert "dbk_" not in caplog.text
    assert "private" not in caplog.text
