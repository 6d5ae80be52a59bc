"""Waiting for a place, over real sockets, with scripted providers."""

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest

from coordinator.hub import CLOSE_NO_PLACE
from provider.protocol import InferenceRequest, encode
from tests.integration.coordinator_harness import (
    Provider,
    chat,
    coordinator,
    counts,
    dialled,
    events,
    postgres,
    provider,
    registration,
    slot,
    text_of,
    uuid_of,
    whole,
    with_timings,
)

__all__ = ["postgres"]
CHAT = "/v1/chat/completions"


class Gate:
    """A provider that answers each request when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, played: Provider, request: InferenceRequest) -> None:
        await self.open.wait()
        await counts(played, request)


def asked(played: Provider) -> list[InferenceRequest]:
    return [each for each in played.heard if isinstance(each, InferenceRequest)]


async def some_waiting(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """What /v1/fleet says of those who wait, once there are any."""
    for _ in range(500):
        waiting: list[dict[str, Any]] = (await client.get("/v1/fleet")).json()["waiting"]
        if waiting:
            return waiting
        await asyncio.sleep(0.02)
    raise AssertionError("nobody waits")


def test_a_waiting_stream_shows_nothing_until_its_first_chunk_and_the_log_tells_its_way(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coordinator")

    async def scene() -> None:
        gate = Gate()
        full = {"DARKBLOOM_MOST_WAITING": "1", "DARKBLOOM_MOST_PROVIDERS_PER_TOKEN": "1"}
        made = coordinator(postgres, environment=full)
        async with made as running, provider(running, gate) as played, running.client() as client:
            await played.beat(slots=[slot(max_concurrency=1)])
            await asyncio.sleep(0.05)
            first = asyncio.create_task(client.post(CHAT, json=chat()))
            await played.hears(InferenceRequest)
            headers = {"X-Request-ID": "the-waiting-one"}
            request = client.build_request("POST", CHAT, json=chat(stream=True), headers=headers)
            waits = asyncio.create_task(client.send(request, stream=True))
            waiting = await some_waiting(client)
            assert (waiting[0]["requests"], waiting[0]["eta_s"], waits.done()) == (1, None, False)
            assert 'darkbloom_requests_waiting{model="demo"} 1.0' in (await client.get("/metrics")).text
            beyond = await client.post(CHAT, json=chat())
            assert (beyond.status_code, beyond.json()["error"]["code"]) == (429, "queue_full")
            async with dialled(running) as another:
                await another.send(encode(registration("another")))
                await asyncio.wait_for(another.wait_closed(), 10)
                assert another.close_code == CLOSE_NO_PLACE
            gate.open.set()
            response = await waits
            assert response.status_code == 200
            assert text_of(events((await response.aread()).decode())) == "one two three"
            assert (await first).status_code == 200
            page = (await client.get("/metrics")).text
            assert 'darkbloom_wait_seconds_count{outcome="served"} 1.0' in page
            assert 'darkbloom_breakers{state="open"} 0.0' in page

    asyncio.run(scene())
    said = [record.getMessage() for record in caplog.records if "the-waiting-one" in record.getMessage()]
    lines = [line for line in said if not line.startswith("route ")]
    assert [line.split()[0] for line in lines] == ["request_waiting", "attempt", "request_waited", "request"]
    job = re.search(r"job=(\S+)", lines[-1])
    assert job is not None
    assert f"attempt={job[1]}.1" in lines[1]


def test_an_order_to_drain_holds_for_new_connections_until_it_is_taken_back(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, with_timings(reference_s=0.1)) as running, running.client() as client:
            async with running.client(running.admin_key) as admin, provider(running):
                answer = await admin.post(f"/v1/admin/providers/{uuid_of('p1')}/drain")
                assert answer.json() == {"provider": uuid_of("p1"), "status": "draining", "requests": 0}
            async with provider(running) as again:
                await asyncio.sleep(0.3)  # what is stored has been read again meanwhile
                refused = await client.post(CHAT, json=chat())
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "provider_draining")
                assert asked(again) == []
                async with running.client(running.admin_key) as admin:
                    answer = await admin.post("/v1/admin/providers/p1/drain", json={"drain": False})
                    assert answer.json()["status"] == "active"
                await asyncio.sleep(0.3)
                assert (await client.post(CHAT, json=chat())).status_code == 200

    asyncio.run(scene())


def test_a_drain_can_be_waited_for(postgres: str) -> None:
    async def scene() -> None:
        gate = Gate()
        async with coordinator(postgres) as running, provider(running, gate) as played, running.client() as client:
            runs = asyncio.create_task(client.post(CHAT, json=chat()))
            await played.hears(InferenceRequest)
            async with running.client(running.admin_key) as admin:
                drains = asyncio.create_task(admin.post("/v1/admin/providers/p1/drain?wait=true"))
                done, _ = await asyncio.wait({drains}, timeout=0.3)
                assert not done
                gate.open.set()
                assert (await drains).json()["requests"] == 0
            assert (await runs).status_code == 200

    asyncio.run(scene())


def test_an_order_that_takes_too_long_says_how_much_is_left_and_stands(postgres: str) -> None:
    async def scene() -> None:
        gate = Gate()
        async with (
            coordinator(postgres, with_timings(load_s=0.3)) as running,
            provider(running, gate) as played,
            running.client() as client,
            running.client(running.admin_key) as admin,
        ):
            runs = asyncio.create_task(client.post(CHAT, json=chat()))
            await played.hears(InferenceRequest)
            late = await admin.post("/v1/admin/providers/p1/drain?wait=true")
            assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert "1 requests are still running" in late.json()["error"]["message"]
            gate.open.set()
            assert (await runs).status_code == 200
            assert (await client.get("/v1/fleet/p1")).json()["drain_ordered"]

    asyncio.run(scene())


def test_an_order_holds_at_every_coordinator_of_the_database(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(reference_s=0.1)
        async with (
            coordinator(postgres, timings) as running,
            coordinator(postgres, timings, beside=running) as other,
            provider(running),
            provider(other),
            running.client(running.admin_key) as admin,
            other.client() as client,
        ):
            assert (await client.post(CHAT, json=chat())).status_code == 200
            for drain, status in ((True, 503), (False, 200)):
                await admin.post("/v1/admin/providers/p1/drain", json={"drain": drain})
                for _ in range(100):
                    got = await client.post(CHAT, json=chat())
                    if got.status_code == status:
                        break
                    await asyncio.sleep(0.05)
                assert got.status_code == status

    asyncio.run(scene())


def test_a_coordinator_that_ends_serves_who_waits_while_it_can_and_sends_the_rest_elsewhere(postgres: str) -> None:
    async def scene() -> None:
        gate = Gate()
        async with (
            coordinator(postgres, with_timings(drain_s=1.5)) as running,
            provider(running, gate) as played,
            running.client() as client,
        ):
            await played.beat(slots=[slot(max_concurrency=1)])
            await asyncio.sleep(0.05)
            posts = [asyncio.create_task(client.post(CHAT, json=chat())) for _ in range(3)]
            await some_waiting(client)
            running.stop.ask()
            await played.complete(await played.hears(InferenceRequest), 0, whole("first"))
            await played.hears(InferenceRequest, 2)
            answers = await asyncio.gather(*posts)
            codes = sorted((one.status_code, one.json().get("error", {}).get("code")) for one in answers)
            assert codes == [(200, None), (503, "draining"), (503, "draining")]
            assert all(one.headers["retry-after"] for one in answers if one.status_code == 503)

    asyncio.run(scene())
