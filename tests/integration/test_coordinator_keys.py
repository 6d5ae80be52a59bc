"""Keys, their limits and what they have used, over real sockets and a real Postgres."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed

from coordinator.config import SECRET_FORM
from coordinator.keys import new_secret
from coordinator.store import postmaster
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.postgres import Store
from coordinator.store.records import JobOutcome, Usage
from coordinator.store.schema import migrate
from tests.integration.coordinator_harness import (
    MODEL,
    Running,
    advert,
    chat,
    coordinator,
    dialled,
    hurry,
    postgres,
    provider,
    rows,
    scratch,
    slot,
    typed,
    with_timings,
)

__all__ = ["postgres"]

OTHER = "other"
BOTH = [advert(), advert(OTHER)]
KEYS = "/v1/admin/keys"
SOON = with_timings(key_fresh_s=0.1)


def error_of(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "code", "param"}
    return response.status_code, error["code"]


async def made(admin: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    got = await admin.post(KEYS, json={"kind": "api", **wanted})
    assert got.status_code == 201, got.text
    assert got.headers["cache-control"] == "no-store"
    return dict(got.json())


def sdk(running: Running, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=20)


async def until(wanted: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await wanted():
            return
        await asyncio.sleep(0.03)
    raise AssertionError("it does not come")


def test_a_key_is_shown_once_works_at_once_and_is_revoked_at_once(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> str:
        async with coordinator(postgres) as running, running.client(running.admin_key) as admin:
            key = await made(admin, name="mine", models=["b", "a", "b"], requests_per_minute=5)
            secret = str(key.pop("secret"))
            assert SECRET_FORM.fullmatch(secret)
            assert (key["kind"], key["name"], key["models"]) == ("api", "mine", ["a", "b"])
            assert (key["requests_per_minute"], key["tokens_per_minute"], key["revoked_at"]) == (5, None, None)
            listed = await admin.get(KEYS)
            assert key in listed.json()["data"]
            assert secret not in listed.text
            async with running.client(secret) as client:
                assert (await client.get("/v1/models")).status_code == 200
                gone = await admin.delete(f"{KEYS}/{key['id']}")
                assert (gone.status_code, gone.json()["id"]) == (200, key["id"])
                assert gone.json()["revoked_at"] is not None
                assert error_of(await client.get("/v1/models")) == (401, "invalid_api_key")
            for unknown in (key["id"], 10**6, 0, 2**70, -1):
                assert error_of(await admin.delete(f"{KEYS}/{unknown}")) == (404, "key_not_found")
            assert (await made(admin, kind="admin"))["name"].startswith("admin-")
            return secret

    with caplog.at_level("DEBUG", logger="coordinator"):
        secret = asyncio.run(scene())
    assert "key_created key=" in caplog.text
    assert secret not in caplog.text
    assert "dbk_" not in caplog.text


BAD: list[Any] = [
    {},
    {"kind": "emperor"},
    {"kind": "api", "nmae": "x"},
    {"kind": "api", "name": ""},
    {"kind": "api", "name": "a\0"},
    {"kind": "api", "models": []},
    {"kind": "api", "models": ["a\0"]},
    {"kind": "api", "requests_per_minute": 0},
    {"kind": "api", "requests_per_minute": True},
    {"kind": "api", "requests_per_minute": "5"},
    {"kind": "api", "tokens_per_minute": 2**63},
    {"kind": "provider", "tokens_per_minute": 5},
    {"kind": "admin", "models": ["a"]},
]


def test_what_is_not_understood_is_400_and_other_kinds_are_403(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client(running.admin_key) as admin:
            for body in BAD:
                assert error_of(await admin.post(KEYS, json=body))[0] == 400, body
            assert error_of(await admin.delete(f"{KEYS}/x"))[0] == 400
            for query in ("group=colour", "from=yesterday", "to=9999-99-99", "from=2026-02-01&to=2026-01-01"):
                assert error_of(await admin.get(f"/v1/admin/usage?{query}"))[0] == 400, query
            async with running.client() as client:
                for method, path in (
                    ("GET", KEYS),
                    ("POST", KEYS),
                    ("DELETE", f"{KEYS}/1"),
                    ("GET", "/v1/admin/usage"),
                ):
                    got = await client.request(method, path, json={"kind": "admin"} if method == "POST" else None)
                    assert error_of(got) == (403, "wrong_key_kind")
        assert rows(postgres, "select count(*) from tokens") == [(3,)]

    asyncio.run(scene())


def test_the_command_makes_limited_keys(postgres: str) -> None:
    where = ("--database-url", postgres)
    limits = ("--models", "a,b", "--models", "c", "--requests-per-minute", "7", "--tokens-per-minute", "900")
    done = typed("token", "create", "--kind", "api", "--name", "few", *limits, *where)
    assert done.exit_code == 0, done.output
    (told,) = (line for line in typed("token", "list", *where).stdout.splitlines() if " few " in line)
    assert "7 requests/min; 900 tokens/min; models a,b,c" in told
    assert told.endswith("live")
    assert typed("token", "revoke", "few", *where).exit_code == 0
    assert typed("token", "create", "--kind", "admin", "--models", "a", *where).exit_code == 1
    assert typed("token", "create", "--kind", "api", "--models", ",", *where).exit_code == 1
    assert typed("token", "create", "--kind", "api", "--requests-per-minute", "0", *where).exit_code == 2


def test_the_sdk_sees_and_uses_only_the_models_of_its_key(postgres: str) -> None:
    async def scene() -> None:
        slots = [slot(), slot(OTHER)]
        async with (
            coordinator(postgres) as running,
            provider(running, models=BOTH, beats=False) as played,
            running.client(running.admin_key) as admin,
        ):
            await played.beat(slots=slots)
            key = await made(admin, models=[MODEL, "later"])
            async with sdk(running, key["secret"]) as client:
                assert [one.id async for one in client.models.list()] == [MODEL]
                assert (await client.models.retrieve(MODEL)).id == MODEL
                for model in (OTHER, "nobody's"):
                    with pytest.raises(openai.PermissionDeniedError) as unseen:
                        await client.models.retrieve(model)
                    assert unseen.value.code == "model_not_allowed"
                with pytest.raises(openai.NotFoundError) as unserved:
                    await client.models.retrieve("later")
                assert str(unserved.value.body["message"]).endswith(f"Served: {MODEL}.")  # type: ignore[index]
                said = await client.chat.completions.create(**chat())
                assert said.choices[0].message.content == "one two three"
                for model in (OTHER, "nobody's"):
                    with pytest.raises(openai.PermissionDeniedError) as refused:
                        await client.chat.completions.create(**{**chat(), "model": model})
                    assert refused.value.code == "model_not_allowed"
                with pytest.raises(openai.APIStatusError) as away:
                    await client.chat.completions.create(**{**chat(), "model": "later"})
                assert away.value.code == "model_not_found"
                assert str(away.value.body["message"]).endswith(f"Served: {MODEL}.")  # type: ignore[index]
            async with running.client(key["secret"]) as client:
                got = await client.post("/v1/messages", json={**chat(), "model": OTHER, "max_tokens": 5})
                assert (got.status_code, got.json()["error"]["type"]) == (403, "permission_error")

    asyncio.run(scene())


def test_requests_beyond_the_limit_are_429_with_a_time(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running),
            running.client(running.admin_key) as admin,
        ):
            key, free = await made(admin, requests_per_minute=3), await made(admin)
            async with sdk(running, key["secret"]) as client:
                for left, stream in ((2, False), (1, True), (0, False)):
                    told = (await client.chat.completions.with_raw_response.create(**chat(stream))).headers
                    rates = {name: told[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining", "reset")}
                    assert (rates["limit"], rates["remaining"]) == ("3", str(left))
                    assert rates["reset"].endswith("s")
                    assert "x-ratelimit-limit-tokens" not in told
                with pytest.raises(openai.RateLimitError) as refused:
                    await client.chat.completions.create(**chat())
            assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
            assert refused.value.code == "rate_limit_exceeded"
            body: Any = refused.value.body
            assert (body["limit"], body["allowed"]) == ("requests_per_minute", 3)
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 20
            async with running.client(key["secret"]) as client:
                assert (await client.get("/v1/models")).status_code == 200
                got = await client.post("/v1/messages", json={**chat(), "max_tokens": 5})
                assert (got.status_code, got.json()["error"]["type"]) == (429, "rate_limit_error")
            async with sdk(running, free["secret"]) as client:
                told = (await client.chat.completions.with_raw_response.create(**chat())).headers
                assert not [name for name in told if "ratelimit" in name]

    asyncio.run(scene())


def test_tokens_are_reserved_as_asked_and_counted_as_used(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client(running.admin_key) as admin:
            key = await made(admin, tokens_per_minute=100)
            async with running.client(key["secret"]) as client:

                async def ask(max_tokens: int) -> httpx.Response:
                    return await client.post("/v1/chat/completions", json=chat(max_tokens=max_tokens))

                refused = await ask(50)
                assert error_of(refused) == (404, "model_not_found")
                assert refused.headers["x-ratelimit-limit-tokens"] == "100"
                assert int(refused.headers["x-ratelimit-remaining-tokens"]) <= 50
                async with provider(running):
                    for max_tokens in (60, 60, 60, 60, 10, 10, 10, 10):
                        assert (await ask(max_tokens)).status_code == 200
                    refused = await ask(90)
                    assert error_of(refused) == (429, "rate_limit_exceeded")
                    assert refused.json()["error"]["limit"] == "tokens_per_minute"
                    assert int(refused.headers["retry-after"]) >= 1
                    assert (await ask(5)).status_code == 200

    asyncio.run(scene())


def test_usage_is_reported_by_key_model_and_day(postgres: str) -> None:
    now = datetime.now(UTC).replace(hour=12)

    def used(number: int, key: int, model: str, days_ago: int, outcome: JobOutcome = JobOutcome.COMPLETED) -> Usage:
        ended = now - timedelta(days=days_ago)
        return Usage(
            f"j{number}", key, "/v1/completions", model, "p", 1, outcome, None, 10 * number, None, 1, 1, 0, ended, ended
        )

    async def scene() -> None:
        async with coordinator(postgres) as running, running.client(running.admin_key) as admin:
            one, two = (await made(admin, name="one"))["id"], (await made(admin, name="two"))["id"]
            store = Store(postgres)
            await store.write(
                [
                    used(1, one, "a", 2),
                    used(2, one, "b", 2, JobOutcome.FAILED),
                    used(3, one, "a", 3),
                    used(4, two, "a", 2, JobOutcome.CANCELLED),
                    used(5, 10**9, "a", 2),
                    used(6, one, "a", 90),
                    used(7, one, "a", 90, JobOutcome.REFUSED),
                ]
            )
            await store.close()

            async def report(**query: str) -> Any:
                got = await admin.get("/v1/admin/usage", params=query)
                assert got.status_code == 200, got.text
                return got.json()

            whole = await report(**{"from": (now - timedelta(days=10)).date().isoformat()})
            assert whole["group"] == ["key", "model", "day"]
            days = [(now - timedelta(days=ago)).date().isoformat() for ago in (3, 2)]
            shown = [(each["day"], each["key_name"], each["model"], each["prompt_tokens"]) for each in whole["data"]]
            assert shown == [
                (days[0], "one", "a", 30),
                (days[1], "one", "a", 10),
                (days[1], "one", "b", 20),
                (days[1], "two", "a", 40),
                (days[1], None, "a", 50),
            ]
            (total,) = (await report(group=""))["data"]
            assert (total["requests"], total["completed"], total["failed"], total["cancelled"]) == (5, 3, 1, 1)
            assert (total["prompt_tokens"], total["completion_tokens"], total["parks"]) == (150, 0, 5)
            assert "key" not in total
            by_model = (await report(group="model"))["data"]
            assert [(each["model"], each["requests"]) for each in by_model] == [("a", 4), ("b", 1)]
            upto = (now - timedelta(days=3)).isoformat()
            assert (await report(to=upto, group="day"))["data"] == []
            long_ago = await report(**{"from": "2000-01-01", "to": upto, "group": "key"})
            assert [(each["key"], each["requests"], each["refused"]) for each in long_ago["data"]] == [(one, 2, 1)]

    asyncio.run(scene())


def test_a_provider_whose_token_is_revoked_is_left_and_told(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres, SOON) as running,
            running.client(running.admin_key) as admin,
            coordinator(postgres, SOON, beside=running) as other,
        ):
            for way in (running, other):
                key = await made(admin, kind="provider")
                async with dialled(way, key["secret"]) as socket:
                    await asyncio.sleep(0.05)
                    await admin.delete(f"{KEYS}/{key['id']}")
                    with pytest.raises(ConnectionClosed):
                        async with asyncio.timeout(10):
                            await socket.recv()
                with pytest.raises(ConnectionClosed) as closed:
                    async with dialled(way, key["secret"]) as socket:
                        await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4401

    asyncio.run(scene())


def test_coordinators_share_keys_and_usage(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres, SOON) as one,
            coordinator(postgres, SOON, beside=one) as two,
            provider(one),
            provider(two),
            one.client(one.admin_key) as admin,
        ):
            key = await made(admin)
            async with one.client(key["secret"]) as first, two.client(key["secret"]) as second:
                for client in (first, second, second):
                    assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

                async def counted() -> bool:
                    data = (await admin.get("/v1/admin/usage?group=key")).json()["data"]
                    return [each["requests"] for each in data if each["key"] == key["id"]] == [3]

                async def refused() -> bool:
                    return (await second.get("/v1/models")).status_code == 401

                await until(counted)
                await admin.delete(f"{KEYS}/{key['id']}")
                assert (await first.get("/v1/models")).status_code == 401
                await until(refused)

    asyncio.run(scene())


@pytest.fixture(scope="module")
def own_postgres() -> Any:
    """A server that a test may stop."""
    with scratch() as directory:
        server = EmbeddedPostgres(directory)
        url = server.acquire()
        migrate(url)
        hurry(url)
        yield directory, url, server
        server.release()


def test_traffic_goes_on_and_every_job_is_stored_once_while_postgres_is_away(own_postgres: Any) -> None:
    directory, url, server = own_postgres

    async def scene() -> None:
        async with coordinator(url, SOON) as running, provider(running), running.client() as client:

            async def ask(count: int) -> None:
                for _ in range(count):
                    assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

            await ask(3)
            found = postmaster.running((directory / "postgres").resolve())
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
            await ask(20)
            made_up = await client.get("/v1/models", headers={"Authorization": f"Bearer {new_secret()}"})
            assert error_of(made_up) == (503, "store_unavailable")
            assert await asyncio.to_thread(server.revive)
            await ask(3)
            await until(all_stored)

    async def all_stored() -> bool:
        query = "select count(*), count(distinct job_id), sum(prompt_tokens) from usage"
        return await asyncio.to_thread(rows, url, query) == [(26, 26, 26 * 7)]

    asyncio.run(scene())
    in_order = rows(url, "select finished_at from usage order by ctid")
    assert in_order == sorted(in_order)


def test_what_could_not_be_stored_at_the_end_is_stored_by_the_next_coordinator(own_postgres: Any) -> None:
    directory, url, server = own_postgres
    timings = with_timings(flush_s=0.1)

    async def scene(data_dir: Path) -> None:
        async with (
            coordinator(url, timings, data_dir=data_dir) as running,
            provider(running),
            running.client() as client,
        ):
            found = postmaster.running((directory / "postgres").resolve())
            assert found is not None
            assert (await client.get("/v1/models")).status_code == 200
            os.kill(found.pid, signal.SIGKILL)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        assert await asyncio.to_thread(server.revive)
        async with coordinator(url, timings, data_dir=data_dir, beside=running) as running:
            assert [row[0] for row in await running.usage()] == ["completed"]

    with scratch() as data_dir:
        asyncio.run(scene(data_dir))
        assert not list(data_dir.rglob("*.log"))
