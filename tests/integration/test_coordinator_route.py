"""POST /v1/route and what providers are told of themselves, over real sockets."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from coordinator.costs import Terms
from provider.protocol import Hardware, InferenceRequest, Routability
from tests.integration.coordinator_harness import (
    GIB,
    MODEL,
    Provider,
    Running,
    advert,
    chat,
    coordinator,
    postgres,
    provider,
    slot,
    uuid_of,
)

__all__ = ["postgres"]

MAC = Hardware(chip="Apple M3 Max", memory_bytes=64 * GIB, memory_kind="unified", cores=16)
GPU = Hardware(chip="NVIDIA H100", memory_bytes=80 * GIB, memory_kind="discrete", cores=32)
ASKED = {"model": MODEL, "prompt_tokens": 1000, "max_tokens": 200}


async def routed(running: Running, key: str | None = None, **asked: Any) -> dict[str, Any]:
    async with running.client(key) as client:
        got = await client.post("/v1/route", json={**ASKED, **asked})
    assert got.status_code == 200, got.text
    return dict(got.json())


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in answer["candidates"]}


def test_every_provider_appears_with_a_cost_or_a_reason_and_nothing_is_sent(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, AsyncExitStack() as stack:

            async def joins(name: str, slots: list[Any] | None = None, **values: Any) -> Provider:
                one = await stack.enter_async_context(provider(running, provider_id=name, beats=False, **values))
                await one.beat(slots=slots)
                return one

            mac = await joins("mac", [slot(decode_tps=40, prefill_tps=800)], hardware=MAC)
            gpu = await joins("gpu", [slot(decode_tps=150, prefill_tps=9000, running=1)], hardware=GPU)
            exact = await joins("exact", [slot(decode_tps=20, prefill_tps=300)], models=[advert(exact="on")])
            await joins("cold", [])
            await joins("large", [], models=[advert(size_bytes=9 * GIB)])
            await joins("other", models=[advert("other")])
            await asyncio.sleep(0.1)

            answer = await routed(running)
            found = by_name(answer)
            assert list(found) == ["mac", "gpu", "exact", "cold", "large", "other"]
            assert answer["refused"] is None
            assert answer["decision"] == {"provider": uuid_of("gpu"), "cost_ms": found["gpu"]["cost_ms"]}
            for name in ("mac", "gpu", "exact", "cold"):
                one = found[name]
                assert (one["eligible"], one["reason"]) == (True, None)
                assert list(one["terms"]) == list(Terms._fields)
                assert sum(one["terms"].values()) == pytest.approx(one["cost_ms"], abs=0.01)
            assert found["mac"]["terms"]["prefill"] == pytest.approx(1250)
            assert found["mac"]["terms"]["decode"] == pytest.approx(5000)
            assert found["gpu"]["terms"]["decode_backlog"] == pytest.approx(200 / 0.15, abs=0.01)
            assert found["cold"]["terms"]["residency"] > 10_000
            assert (found["cold"]["detail"], found["mac"]["detail"]) == ("to be loaded", "loaded")
            for name, reason in (("large", "memory_cap"), ("other", "model_not_served")):
                one = found[name]
                assert (one["eligible"], one["reason"], one["cost_ms"], one["terms"]) == (False, reason, None, None)
            assert found["large"]["detail"] == "loading takes 10.8 GiB, 4.0 GiB are free for it"

            counts = {"eligible": 4, "memory_cap": 1, "model_not_served": 1}
            assert answer["counts"] == counts
            for limit in (0, 1, 4, 5, 6):
                short = await routed(running, limit=limit)
                listed = sorted(found, key=lambda name: (found[name]["cost_ms"] or 1e9, name))[:limit]
                assert set(by_name(short)) == set(listed)
                assert (short["counts"], short["decision"]) == (counts, answer["decision"])

            answer = await routed(running, running.admin_key, exact=True)
            assert answer["decision"]["provider"] == uuid_of("exact")
            assert by_name(answer)["gpu"]["reason"] == "exact_not_on"
            assert by_name(answer)["other"]["reason"] == "model_not_served"

            answer = await routed(running, vision=True)
            assert (answer["decision"], answer["refused"]["reason"]) == (None, "vision_not_served")
            assert answer["refused"]["providers"] == {"vision_not_served": 5, "model_not_served": 1}

            answer = await routed(running, prompt_tokens=5000)
            assert answer["refused"]["longest_tokens"] == 4096
            assert by_name(answer)["mac"]["reason"] == "context_exceeded"
            for one in (mac, gpu, exact):
                assert not [each for each in one.heard if isinstance(each, InferenceRequest)]

    asyncio.run(scene())


def test_whoever_may_ask_and_what_may_be_asked(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running:
            answer = await routed(running)
            assert (answer["decision"], answer["candidates"]) == (None, [])
            assert answer["refused"] == {"reason": "model_not_served", "providers": {}}
            async with running.client(running.provider_token) as client:
                assert (await client.post("/v1/route", json=ASKED)).status_code == 403
            async with running.client() as client:
                for wrong, param in (
                    ({"prompt_tokens": -1}, "prompt_tokens"),
                    ({"max_tokens": "many"}, "max_tokens"),
                    ({"model": ""}, "model"),
                    ({"exact": "yes"}, "exact"),
                    ({"exakt": True}, "exakt"),
                ):
                    got = await client.post("/v1/route", json={**ASKED, **wrong})
                    error = got.json()["error"]
                    assert (got.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
                assert (await client.post("/v1/route", content=b"{")).status_code == 400
            async with httpx.AsyncClient(base_url=running.url) as client:
                assert (await client.post("/v1/route", json=ASKED)).status_code == 401

    asyncio.run(scene())


def test_a_key_for_some_models_is_told_of_no_other(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running:
            async with running.client(running.admin_key) as admin:
                made = (await admin.post("/v1/admin/keys", json={"kind": "api", "models": ["other"]})).json()
            async with running.client(made["secret"]) as client:
                got = await client.post("/v1/route", json=ASKED)
                assert (got.status_code, got.json()["error"]["code"]) == (403, "model_not_allowed")
                assert (await client.post("/v1/route", json={**ASKED, "model": "other"})).status_code == 200

    asyncio.run(scene())


def test_a_provider_is_told_what_it_is_routable_for_when_that_changes(postgres: str) -> None:
    async def scene() -> None:
        both = [advert(), advert("huge", size_bytes=9 * GIB)]
        async with coordinator(postgres) as running, provider(running, models=both) as played:
            told: Routability = await played.hears(Routability)
            assert {model: (one.routable, one.reason) for model, one in told.models.items()} == {
                MODEL: (True, None),
                "huge": (False, "memory_cap"),
            }
            assert told.models["huge"].detail == "loading takes 10.8 GiB, 4.0 GiB are free for it"
            await played.beat(status="draining")
            told = await played.hears(Routability, 2)
            assert told.models[MODEL].reason == "provider_draining"
            await played.beat()
            await played.beat()
            told = await played.hears(Routability, 3)
            assert told.models[MODEL].routable
            await asyncio.sleep(1.2)
            assert sum(isinstance(each, Routability) for each in played.heard) == 3

    asyncio.run(scene())


def test_decisions_are_shown_with_their_provider_and_in_the_metrics(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running), running.client() as client:
            await asyncio.sleep(0.05)
            answered = await client.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "of-mine"})
            assert answered.status_code == 200
            shown = (await client.get("/v1/fleet/p1")).json()
            (decision,) = shown["decisions"]
            assert (decision["request"], decision["provider"]) == ("of-mine", uuid_of("p1"))
            assert decision["candidates"] == 1
            assert set(decision["terms"]) == set(Terms._fields)
            page = (await client.get("/metrics")).text
            assert f'darkbloom_route_chosen_total{{provider="{uuid_of("p1")}"}} 1.0' in page
            assert 'darkbloom_route_decisions_total{outcome="chosen"} 1.0' in page
            assert 'darkbloom_route_term_milliseconds_count{term="residency"} 1.0' in page

    asyncio.run(scene())
