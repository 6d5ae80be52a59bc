"""Who is asked, and who is refused, by what providers report of their memory; over real sockets."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from provider.protocol import InferenceRequest
from tests.integration.coordinator_harness import (
    GIB,
    MODEL,
    Provider,
    Running,
    advert,
    chat,
    coordinator,
    counts,
    postgres,
    provider,
    slot,
    whole,
    with_timings,
)

__all__ = ["postgres"]


def asked(played: Provider) -> int:
    return sum(isinstance(each, InferenceRequest) for each in played.heard)


def long_chat(size: int, **values: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": "word " * (size // 5)}], **values)


async def shown(running: Running, provider_id: str = "p1") -> dict[str, Any]:
    async with running.client() as client:
        return dict((await client.get(f"/v1/fleet/{provider_id}")).json())


def test_the_model_is_asked_for_where_it_is_loaded_then_where_it_could_be(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, provider_id="warm") as warm,
            provider(running, provider_id="cold") as cold,
            provider(running, provider_id="small") as small,
            running.client() as client,
        ):
            await warm.beat(slots=[slot(running=1)])
            await cold.beat(slots=[])
            await small.beat(slots=[], free_for_load_bytes=GIB)
            await asyncio.sleep(0.05)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            assert (asked(warm), asked(cold), asked(small)) == (1, 0, 0)
            await warm.beat(status="draining")
            await asyncio.sleep(0.05)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            assert (asked(warm), asked(cold), asked(small)) == (1, 1, 0)
            await cold.beat(status="draining", slots=[])
            await asyncio.sleep(0.05)
            got = await client.post("/v1/chat/completions", json=chat())
            assert (got.status_code, got.json()["error"]["code"]) == (503, "provider_draining")
            assert "1 memory_cap" in got.json()["error"]["message"]

    asyncio.run(scene())


def test_a_prompt_that_nobody_could_ever_serve_is_refused_for_good(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, provider_id="short") as short,
            provider(running, provider_id="tight", models=[advert(context_length=32_768)]) as tight,
            running.client() as client,
        ):
            await tight.beat(slots=[slot(tokens_max=5000)])
            await asyncio.sleep(0.05)
            got = await client.post("/v1/chat/completions", json=long_chat(120_000))
            error = got.json()["error"]
            assert (got.status_code, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 5000)
            assert (error["n_prompt_tokens"], error["reason"]) == (10_000, "prompt_too_long")
            assert "has at least 10000 tokens" in error["message"]
            assert "retry-after" not in got.headers
            assert (asked(short), asked(tight)) == (0, 0)
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.api_key) as sdk:
                with pytest.raises(openai.BadRequestError):
                    await sdk.chat.completions.create(**long_chat(120_000))
            got = await client.post("/v1/completions", json={"model": MODEL, "prompt": [1] * 5001})
            assert got.json()["error"]["n_prompt_tokens"] == 5001
            assert "has 5001 tokens" in got.json()["error"]["message"]
            page = (await client.get("/metrics")).text
            assert 'darkbloom_route_refusals_total{reason="prompt_too_long"} 3.0' in page
            got = await client.post("/v1/completions", json={"model": MODEL, "prompt": [1] * 4999})
            assert (got.status_code, asked(short), asked(tight)) == (200, 0, 1)
            got = await client.post("/v1/messages/count_tokens", json=long_chat(120_000))
            assert (got.status_code, asked(short) + asked(tight)) == (200, 2)
            await tight.beat(slots=[slot(tokens_max=5000)], status="draining")
            await asyncio.sleep(0.05)
            got = await client.post("/v1/completions", json={"model": MODEL, "prompt": [1] * 4999})
            assert (got.status_code, got.json()["error"]["code"]) == (503, "provider_draining")

    asyncio.run(scene())


def test_usage_teaches_how_many_bytes_a_token_has(postgres: str) -> None:
    """Words of which the tokenizer makes very few tokens: the bound gives way before it refuses what would fit."""

    async def dense(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await played.complete(request, 0, whole("ok"))  # says 7 prompt tokens

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, dense), running.client() as client:
            got = await client.post("/v1/chat/completions", json=long_chat(60_000))
            assert got.json()["error"]["reason"] == "context_exceeded"
            assert (await client.post("/v1/chat/completions", json=long_chat(6_000))).status_code == 200
            assert (await client.post("/v1/chat/completions", json=long_chat(60_000))).status_code == 200

    asyncio.run(scene())


class Stubborn:
    """A provider that looks idle and refuses, until it is told to relent."""

    def __init__(self) -> None:
        self.relents = False

    async def __call__(self, played: Provider, request: InferenceRequest) -> None:
        if self.relents:
            await counts(played, request)
        else:
            await played.fail(request, status=503, code="memory_cap", message="no memory", retryable=True)


async def refused(client: httpx.AsyncClient) -> str:
    got = await client.post("/v1/chat/completions", json=chat())
    assert got.status_code == 503
    return str(got.json()["error"]["code"])


async def late(client: httpx.AsyncClient) -> tuple[str, str]:
    """The code and the reason of a request that has waited in vain."""
    got = await client.post("/v1/chat/completions", json=chat())
    assert (got.status_code, "retry-after" in got.headers) == (503, True)
    return got.json()["error"]["code"], got.json()["error"]["reason"]


def test_who_keeps_refusing_is_left_alone_for_a_while(postgres: str) -> None:
    stubborn = Stubborn()

    async def scene() -> None:
        async with coordinator(postgres, with_timings(wait_s=0.3)) as running, running.client() as client:
            async with provider(running, stubborn) as played:
                codes = [await refused(client) for _ in range(3)]
                waited = await asyncio.gather(*(late(client) for _ in range(27)))
                assert codes == ["memory_cap"] * 3
                assert waited == [("queue_timeout", "capacity_cooldown")] * 27
                assert asked(played) == 3
                (cooldown,) = (await shown(running))["cooldowns"]
                assert (cooldown["model_id"], cooldown["refusals"]) == (MODEL, 3)
                assert 0 < cooldown["for_s"] <= 5
                assert "darkbloom_capacity_cooldowns_total 1.0" in (await client.get("/metrics")).text
            async with provider(running, stubborn) as again:
                assert await late(client) == ("queue_timeout", "capacity_cooldown")
                assert asked(again) == 0
                async with provider(running, provider_id="p2") as other:
                    assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
                    assert asked(other) == 1
                stubborn.relents = True
                await again.beat(slots=[slot(tokens_max=4096)])
                await asyncio.sleep(0.05)
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
                assert (await shown(running))["cooldowns"] == []

    asyncio.run(scene())


def test_who_is_full_is_full_and_not_suspected(postgres: str) -> None:
    async def full(played: Provider, request: InferenceRequest) -> None:
        await played.fail(request, status=429, code="queue_full", message="full", retryable=True)

    async def scene() -> None:
        timings = with_timings(wait_s=0.3)
        async with coordinator(postgres, timings) as running, provider(running, full) as played:
            await played.beat(slots=[slot(running=4)])
            await asyncio.sleep(0.05)
            async with running.client() as client:
                waited = await asyncio.gather(*(late(client) for _ in range(6)))
            assert waited == [("queue_timeout", "queue_full")] * 6
            assert 1 <= asked(played) <= 2  # a refused one leaves it alone for a second
            assert (await shown(running))["cooldowns"] == []

    asyncio.run(scene())


def test_an_accept_in_between_keeps_a_provider_in_use(postgres: str) -> None:
    async def scene() -> None:
        stubborn = Stubborn()
        async with coordinator(postgres) as running, provider(running, stubborn) as played, running.client() as client:
            for _ in range(4):
                stubborn.relents = False
                assert [await refused(client) for _ in range(2)] == ["memory_cap"] * 2
                stubborn.relents = True
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            assert asked(played) == 12

    asyncio.run(scene())


@pytest.mark.parametrize("error", [{"code": "draining"}, {"status": 500, "code": "worker_died"}])
def test_other_failures_are_no_want_of_capacity(postgres: str, error: dict[str, Any]) -> None:
    async def fails(played: Provider, request: InferenceRequest) -> None:
        await played.fail(request, **error)

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, fails) as played, running.client() as client:
            for _ in range(5):
                got = await client.post("/v1/chat/completions", json=chat())
                assert got.json()["error"]["code"] == error["code"]
            assert asked(played) == 5

    asyncio.run(scene())
