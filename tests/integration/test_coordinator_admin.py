"""What operators order of providers, over real sockets and a real Postgres."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg
import pytest

from coordinator.keys import new_secret
from coordinator.store.postgres import Store
from coordinator.store.records import Desired
from provider.protocol import (
    DesiredModel,
    DesiredModels,
    LoadModel,
    LoadModelStatus,
    ModelsUpdate,
    PrefetchModel,
    PrefetchStatus,
    UnloadModel,
    encode,
    parse_from_coordinator,
)
from tests.integration.coordinator_harness import (
    GIB,
    MODEL,
    Provider,
    Running,
    advert,
    chat,
    coordinator,
    dialled,
    heartbeat,
    plain,
    postgres,
    provider,
    registration,
    slot,
    uuid_of,
    with_timings,
)

__all__ = ["postgres"]

OTHER = "other"
BOTH = [advert(), advert(OTHER)]

NO_WORK = ("ack", "routability")


def error_of(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "code", "param"}
    return response.status_code, error["code"]


async def shown(running: Running, provider_id: str = "p1") -> dict[str, Any]:
    async with running.client() as client:
        return dict((await client.get(f"/v1/fleet/{provider_id}")).json())


async def until_shown(running: Running, key: str, wanted: Callable[[Any], bool] = bool) -> Any:
    """What the fleet's view of p1 has under that key, once it is as wanted."""
    found = None
    for _ in range(250):
        found = (await shown(running))[key]
        if wanted(found):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


async def answering(
    client: httpx.AsyncClient, played: Provider, what: str, *answers: LoadModelStatus
) -> httpx.Response:
    """The outcome of an order that the provider answers so."""
    path = f"/v1/admin/providers/p1/{what}"
    asked = asyncio.create_task(client.post(path, json={"model": OTHER}))
    order = await played.hears(LoadModel if what == "load" else UnloadModel)
    assert order.model_id == OTHER
    played.heard.clear()
    for each in answers:
        await played.say(each)
    return await asked


def status(kind: str, **values: Any) -> LoadModelStatus:
    return LoadModelStatus.model_validate({"model_id": OTHER, "status": kind, **values})


def test_a_load_is_answered_with_what_came_of_it(postgres: str) -> None:
    too_big = status("failed", reason="memory_cap: too big", required_bytes=9 * GIB, free_bytes=4 * GIB)
    shares = status("failed", reason="memory_cap: shares", required_bytes=GIB, free_bytes=4 * GIB)
    outcomes = [
        ((status("started"), status("succeeded")), 200, None),
        ((status("started"), too_big), 507, "memory_cap"),
        ((shares,), 507, "memory_cap"),
        ((status("failed", reason="load_failed: the files are damaged"),), 502, "load_failed"),
        ((status("failed"),), 502, "load_failed"),
        ((status("failed", reason="model_not_found: never heard of"),), 404, "model_not_found"),
        ((status("failed", reason="draining: going away"),), 503, "draining"),
    ]

    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, models=BOTH) as played,
            running.client(running.admin_key) as client,
        ):
            for answers, code, why in outcomes:
                got = await answering(client, played, "load", *answers)
                if why is None:
                    assert (got.status_code, got.json()) == (
                        code,
                        {"provider": uuid_of("p1"), "model": OTHER, "status": "loaded"},
                    )
                else:
                    assert error_of(got) == (code, why)
                    assert (answers[-1].reason or "no reason") in got.json()["error"]["message"]
            got = await answering(client, played, "load", too_big)
            assert (got.json()["error"]["required_bytes"], got.json()["error"]["free_bytes"]) == (9 * GIB, 4 * GIB)
            (last,) = (await shown(running))["loads"]
            assert (last["model_id"], last["status"], last["reason"]) == (OTHER, "failed", "memory_cap: too big")
            page = (await client.get("/metrics")).text
            assert 'darkbloom_model_loads_total{status="succeeded"} 1.0' in page
            assert 'darkbloom_model_load_failures_total{reason="memory"} 3.0' in page
            for kind, times in (("load_failed", 2), ("model_not_found", 1), ("draining", 1)):
                assert f'darkbloom_model_load_failures_total{{reason="{kind}"}} {times}.0' in page

    asyncio.run(scene())


def test_an_order_need_not_be_waited_for(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, models=BOTH, name="mini") as played,
            running.client(running.admin_key) as client,
        ):
            for what, kind in (("load", LoadModel), ("unload", UnloadModel)):
                path = f"/v1/admin/providers/mini/{what}"
                got = await client.post(path, json={"model": OTHER}, params={"wait": "false"})
                assert (got.status_code, got.json()["status"]) == (202, "sent")
                assert (await played.hears(kind)).model_id == OTHER

    asyncio.run(scene())


def test_of_several_providers_of_one_name_each_has_an_id(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, provider_id="one", name="mini", models=BOTH) as one,
            provider(running, provider_id="two", name="mini"),
            running.client(running.admin_key) as client,
        ):
            ids = uuid_of("one"), uuid_of("two")
            for method, path, body in (
                ("GET", "/v1/fleet/{}", None),
                ("POST", "/v1/admin/providers/{}/drain", {}),
                ("POST", "/v1/admin/providers/{}/load?wait=false", {"model": OTHER}),
            ):
                got = await client.request(method, path.format("mini"), json=body)
                assert error_of(got) == (409, "provider_ambiguous")
                assert all(id in got.json()["error"]["message"] for id in ids)
                got = await client.request(method, path.format(ids[0]), json=body)
                assert got.status_code in (200, 202)
            assert (await one.hears(LoadModel)).model_id == OTHER
            shown = {each["id"]: each["drain_ordered"] for each in (await client.get("/v1/fleet")).json()["providers"]}
            assert shown == {ids[0]: True, ids[1]: False}

    asyncio.run(scene())


def test_an_unload_is_done_when_no_slot_is_left(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running, models=BOTH) as played,
            running.client(running.admin_key) as client,
        ):
            await played.beat(slots=[slot(), slot(OTHER)])
            path = "/v1/admin/providers/p1/unload"
            asked = asyncio.create_task(client.post(path, json={"model": OTHER}))
            await played.hears(UnloadModel)
            await played.beat(slots=[slot(), slot(OTHER, state="unloading")])
            done, _ = await asyncio.wait({asked}, timeout=0.1)
            assert not done
            await played.beat(slots=[slot()])
            assert (await asked).json() == {"provider": uuid_of("p1"), "model": OTHER, "status": "unloaded"}
            assert error_of(await client.post(path, json={"model": "nobody's"})) == (404, "model_not_found")

    asyncio.run(scene())


def test_an_order_ends_with_the_connection_or_with_patience(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(load_s=0.2)
        async with coordinator(postgres, timings) as running, running.client(running.admin_key) as client:
            path, body = "/v1/admin/providers/p1/load", {"model": MODEL}
            assert error_of(await client.post(path, json=body)) == (404, "provider_not_found")
            async with provider(running) as played:
                assert error_of(await client.post(path, json=body)) == (504, "deadline_exceeded")
                played.heard.clear()
                asked = asyncio.create_task(client.post(path, json=body))
                await played.hears(LoadModel)
                played.socket.transport.abort()
                assert error_of(await asked) == (503, "provider_lost")
            got = await client.post(path, json=body)
            assert error_of(got) == (503, "provider_disconnected")
            assert got.headers["retry-after"]

    asyncio.run(scene())


def test_a_prefetch_is_sent_and_its_progress_shown(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running) as played,
            running.client(running.admin_key) as client,
        ):
            body = {"model": OTHER, "source": "hub/other", "digest": "d1" * 32}
            got = await client.post("/v1/admin/providers/p1/prefetch", json=body)
            assert (got.status_code, got.json()["status"]) == (202, "sent")
            order = await played.hears(PrefetchModel)
            assert (order.model_id, order.source, order.digest) == (OTHER, "hub/other", "d1" * 32)
            await played.say(PrefetchStatus(model_id=OTHER, status="downloading", bytes_done=3, bytes_total=9))
            (note,) = await until_shown(running, "prefetches")
            assert (note["status"], note["bytes_done"], note["bytes_total"]) == ("downloading", 3, 9)
            await played.say(ModelsUpdate(models=BOTH))
            await asyncio.sleep(0.05)
            assert [model["id"] for model in (await shown(running))["models"]] == [MODEL, OTHER]

    asyncio.run(scene())


LISTS: list[list[dict[str, Any]]] = [
    [{"id": "a", "source": "/models/a", "digest": None}, {"id": "b", "source": "hub/b", "digest": "d" * 64}],
    [{"id": "b", "source": "hub/b", "digest": "d" * 64}],
    [],
]


def test_desired_models_reach_everyone_now_and_at_registration(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client(running.admin_key) as client:
            path = "/v1/admin/desired-models"
            assert (await client.get(path)).json() == {"revision": 0, "models": []}
            async with provider(running, provider_id="early") as early:
                for revision, models in enumerate(LISTS, 1):
                    got = await client.put(path, json={"models": models})
                    assert (got.status_code, got.json()) == (200, {"revision": revision})
                    assert (await early.hears(DesiredModels, revision)).model_dump()["models"] == models
                again = await client.put(path, json={"models": []})
                assert again.json() == {"revision": 3}
                async with provider(running, provider_id="late") as late:
                    assert (await late.hears(DesiredModels)).revision == 3
                assert [each.revision for each in early.heard if isinstance(each, DesiredModels)] == [1, 2, 3]
            await client.put(path, json={"models": LISTS[0]})
        async with coordinator(postgres, keep_desired=True) as running, provider(running) as played:
            assert (await played.hears(DesiredModels)).revision == 4
            async with running.client(running.admin_key) as client:
                listed = [{**model, "pools": []} for model in LISTS[0]]
                assert (await client.get(path)).json() == {"revision": 4, "models": listed}

    asyncio.run(scene())


def test_what_another_coordinator_has_set_is_passed_on(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(reference_s=0.05)
        async with coordinator(postgres, timings) as running, provider(running) as played:
            store = Store(postgres)
            for models in ([Desired(DesiredModel(id="a", source="s"))], []):
                made = await store.desire(models, 1, datetime.now(UTC))
                assert await played.hears(DesiredModels, made.revision) == made.message
            await store.close()

    asyncio.run(scene())


POOL = {"providers": "mac-*", "min_warm": 2}
BAD: list[tuple[str, str, Any]] = [
    ("POST", "/v1/admin/providers/p1/load", {}),
    ("POST", "/v1/admin/providers/p1/load", {"model": ""}),
    ("POST", "/v1/admin/providers/p1/load", {"model": "a\0b"}),
    ("POST", "/v1/admin/providers/p1/load", {"model": 3}),
    ("POST", "/v1/admin/providers/p1/load", {"model": "m", "modell": "n"}),
    ("POST", "/v1/admin/providers/p1/load?wait=maybe", {"model": "m"}),
    ("POST", "/v1/admin/providers/p1/unload", []),
    ("POST", "/v1/admin/providers/p1/prefetch", {"model": "m"}),
    ("POST", "/v1/admin/providers/p1/prefetch", {"model": "m", "source": "s", "digest": "d" * 63}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a"}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s", "digest": "D" * 64}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s", "digest": "d" * 64 + "\n"}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s"}, {"id": "a", "source": "t"}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": str(n), "source": "s"} for n in range(129)]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s", "min_warm": -1}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s", "pools": [{"providers": "*"}]}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s", "min_warm": 1, "pools": [POOL]}]}),
    ("PUT", "/v1/admin/desired-models", {"models": [{"id": "a", "source": "s", "pools": [POOL, POOL]}]}),
]


def test_an_order_that_is_not_understood_is_400_and_never_422(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres) as running,
            provider(running) as played,
            running.client(running.admin_key) as client,
        ):
            for method, path, body in BAD:
                got = await client.request(method, path, json=body)
                assert error_of(got)[0] == 400, (path, body)
            got = await client.put("/v1/admin/desired-models", content=b'{"models": [{"id": "\\ud800"}]}')
            assert error_of(got) == (400, "invalid_json")
            assert played.heard == []

    asyncio.run(scene())


def test_orders_are_for_admin_keys_alone(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running) as played, running.client() as client:
            routes = [
                ("POST", "/v1/admin/providers/p1/load"),
                ("POST", "/v1/admin/providers/p1/unload"),
                ("POST", "/v1/admin/providers/p1/prefetch"),
                ("PUT", "/v1/admin/desired-models"),
                ("GET", "/v1/admin/desired-models"),
            ]
            for method, path in routes:
                for key, code in (
                    (running.api_key, (403, "wrong_key_kind")),
                    (running.provider_token, (403, "wrong_key_kind")),
                    (new_secret(), (401, "invalid_api_key")),
                ):
                    got = await client.request(
                        method, path, json={"model": MODEL}, headers={"Authorization": f"Bearer {key}"}
                    )
                    assert error_of(got) == code
            assert played.heard == []

    asyncio.run(scene())


def test_orders_are_described(postgres: str) -> None:
    async def scene() -> dict[str, Any]:
        async with coordinator(postgres) as running, running.client() as client:
            return dict((await client.get("/openapi.json")).json()["paths"])

    paths = asyncio.run(scene())
    load = paths["/v1/admin/providers/{provider}/load"]["post"]
    assert set(load["responses"]) == {"200", "202", "404", "502", "503", "504", "507", "4XX", "5XX"}
    assert [one["name"] for one in load["parameters"]] == ["provider", "wait"]
    body = paths["/v1/admin/desired-models"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["models"]["items"]["required"] == ["id", "source"]
    assert "get" in paths["/v1/admin/desired-models"]
    assert "post" in paths["/v1/admin/providers/{provider}/unload"]
    assert "post" in paths["/v1/admin/providers/{provider}/prefetch"]


def test_the_fleet_shows_whose_reserve_it_is_and_what_could_be_loaded(postgres: str) -> None:
    async def scene() -> None:
        large = advert("large", size_bytes=60 * GIB)
        async with coordinator(postgres) as running, provider(running, models=[advert(), large]) as played:
            await played.beat(activation_reserve_bytes=GIB)
            await asyncio.sleep(0.05)
            told = await shown(running)
            assert told["reserve"] == {"activation_reserve_bytes": GIB, "source": "reported"}
            loads = {model["id"]: (model["cold_load"], model["fits"]) for model in told["models"]}
            assert loads == {MODEL: ("admitted", True), "large": ("refused", False)}
            await played.beat(activation_reserve_bytes=None, free_for_load_bytes=None, slots=[])
            await asyncio.sleep(0.05)
            told = await shown(running)
            assert told["reserve"] == {"activation_reserve_bytes": 11 * GIB // 2, "source": "mirrored"}
            assert {model["cold_load"] for model in told["models"]} == {"unknown"}
            assert all(model["routable"] for model in told["models"])

    asyncio.run(scene())


@pytest.mark.parametrize("bad", ["NaN", "-Infinity", "1e400", "-1"])
def test_a_bad_reading_refuses_loads_and_leaves_the_provider_alone(postgres: str, bad: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, models=BOTH) as played:
            frame = encode(played_beat(played))
            await played.socket.send(frame.replace(f'"free_for_load_bytes":{4 * GIB}', f'"free_for_load_bytes":{bad}'))
            await asyncio.sleep(0.05)
            told = await shown(running)
            assert told["memory"]["free_for_load_bytes"] == "invalid"
            assert {model["id"]: model["reason"] for model in told["models"]} == {MODEL: None, OTHER: "memory_cap"}
            async with running.client() as client:
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
                got = await client.post("/v1/chat/completions", json=chat(model=OTHER))
                assert error_of(got) == (503, "memory_cap")
            assert [each.type for each in played.heard if each.type not in NO_WORK] == ["inference_request"]

    asyncio.run(scene())


def played_beat(played: Provider) -> Any:
    played.beats += 1
    return heartbeat(played.beats)


def test_floors_follow_the_store_and_stay_while_it_cannot_be_read(postgres: str) -> None:
    async def scene() -> None:
        timings = with_timings(reference_s=0.05)
        async with coordinator(postgres, timings) as running, dialled(running) as socket:
            await socket.send(encode(registration("p1", models=[advert("measured")])))
            parse_from_coordinator(await socket.recv())
            assert (await shown(running))["reserve"]["activation_reserve_bytes"] == 11 * GIB // 2
            insert = "insert into floors values ('measured', 1073741824, 'a test', '2026-11-29', '0.9.0')"
            with psycopg.connect(plain(postgres)) as connection:
                connection.execute(insert)
            try:
                await reserve_becomes(running, GIB)
                with psycopg.connect(plain(postgres)) as connection:
                    connection.execute("alter table floors rename to floors_away")
                await asyncio.sleep(0.3)
                await reserve_becomes(running, GIB)
                with psycopg.connect(plain(postgres)) as connection:
                    connection.execute("alter table floors_away rename to floors")
                    connection.execute("update floors set floor_bytes = 2147483648 where model_id = 'measured'")
                await reserve_becomes(running, 2 * GIB)
            finally:
                with psycopg.connect(plain(postgres)) as connection:
                    connection.execute("alter table if exists floors_away rename to floors")
                    connection.execute("delete from floors where model_id = 'measured'")

    asyncio.run(scene())


async def reserve_becomes(running: Running, size: int) -> None:
    await until_shown(running, "reserve", lambda reserve: bool(reserve["activation_reserve_bytes"] == size))
