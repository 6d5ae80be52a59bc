"""Models kept warm by whichever coordinator holds the lock, over real sockets and a real Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from coordinator.config import Pace
from coordinator.errors import StoreDown
from coordinator.store.leadership import PLACING, Leadership
from provider.protocol import LoadModel, LoadModelStatus, PrefetchModel, Slot
from tests.integration.client import MODEL
from tests.integration.coordinator_harness import (
    Provider,
    Running,
    advert,
    coordinator,
    plain,
    postgres,
    provider,
    slot,
    stays_silent,
    with_timings,
    ws_url,
)
from tests.integration.processes import running

__all__ = ["postgres"]

QUICK = with_timings(place_s=0.05, reference_s=0.05)
PACE = Pace(start_s=0.2, settle_s=0.1, first_retry_s=0.2)
COUNT = {"role": "user", "content": "Count from 3 to 99."}
WARM = {"models": [{"id": "demo", "source": "s", "min_warm": 1}]}


async def until(wanted: Callable[[], Awaitable[bool]], within_s: float = 15) -> None:
    for _ in range(round(within_s / 0.03)):
        if await wanted():
            return
        await asyncio.sleep(0.03)
    raise AssertionError("it does not come")


async def placement(client: httpx.AsyncClient) -> dict[str, Any]:
    got = await client.get("/v1/admin/placement")
    assert got.status_code == 200, got.text
    return dict(got.json())


async def desire(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await client.put("/v1/admin/desired-models", json=body)).status_code == 200


async def loaded(played: Provider) -> None:
    """As a provider does."""
    await played.say(LoadModelStatus(model_id="demo", status="succeeded"))
    await played.beat(slots=[slot()])


def loads(played: Provider) -> int:
    return sum(isinstance(one, LoadModel) for one in played.heard)


def test_what_is_desired_warm_is_loaded_once_and_shown(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres, QUICK, pace=PACE) as served,
            provider(served, beats=False) as played,
            served.client(served.admin_key) as admin,
        ):
            await played.beat(slots=[])
            await desire(admin, WARM)
            assert (await played.hears(LoadModel)).model_id == "demo"
            await until(lambda: shows(admin, loading=1, missing=0))
            await loaded(played)
            await until(lambda: shows(admin, warm=1, loading=0))
            (pool,) = (await placement(admin))["pools"]
            assert pool["warm"] == [played.registered.provider_id]
            assert (pool["model"], pool["providers"], pool["min_warm"], pool["blocked"]) == ("demo", "*", 1, {})
            page = (await admin.get("/metrics")).text
            assert "darkbloom_placing 1.0" in page
            assert 'darkbloom_placement_orders_total{kind="load"} 1.0' in page
            assert 'darkbloom_placement_missing{model="demo",providers="*"} 0.0' in page
            await desire(admin, {"models": []})
            await until(lambda: empty(admin))
            assert "darkbloom_placement_missing{" not in (await admin.get("/metrics")).text
            assert loads(played) == 1

            async with served.client() as client:
                assert (await client.get("/v1/admin/placement")).status_code == 403

    async def shows(admin: httpx.AsyncClient, **wanted: int) -> bool:
        pools = (await placement(admin))["pools"]
        return bool(pools) and {key: count(pools[0][key]) for key in wanted} == wanted

    async def empty(admin: httpx.AsyncClient) -> bool:
        return (await placement(admin))["pools"] == []

    asyncio.run(scene())


def count(value: Any) -> int:
    return value if isinstance(value, int) else len(value)


def test_why_a_pool_is_short_is_told_and_a_failed_load_is_tried_again_elsewhere(postgres: str) -> None:
    async def scene() -> None:
        async with (
            coordinator(postgres, QUICK, pace=PACE) as served,
            provider(served, stays_silent, "small", beats=False) as small,
            provider(served, stays_silent, "other", beats=False, models=[advert("other")]) as other,
            served.client(served.admin_key) as admin,
        ):
            await small.beat(slots=[], free_for_load_bytes=1)
            await other.beat(slots=[])
            await desire(admin, WARM)

            async def told() -> bool:
                pools = (await placement(admin))["pools"]
                ids = [small.registered.provider_id, other.registered.provider_id]
                return bool(pools) and [pools[0]["blocked"].get(id) for id in ids] == ["memory_cap", "not_advertised"]

            await until(told)
            async with provider(served, stays_silent, "failing", beats=False) as failing:
                await failing.beat(slots=[])
                await failing.hears(LoadModel)
                await failing.say(LoadModelStatus(model_id="demo", status="failed", reason="load_failed: damaged"))
                async with provider(served, stays_silent, "good", beats=False) as good:
                    await good.beat(slots=[])
                    await good.hears(LoadModel)
                    await loaded(good)
            assert loads(small) == loads(other) == 0
            assert not any(isinstance(one, PrefetchModel) for one in other.heard)

    asyncio.run(scene())


def test_one_coordinator_places_and_another_takes_over(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres, QUICK, pace=PACE) as one, one.client(one.admin_key) as admin:
            await until(lambda: places(admin))
            async with (
                coordinator(postgres, QUICK, beside=one, pace=PACE) as two,
                two.client(two.admin_key) as other,
                provider(two, stays_silent, beats=False) as played,
            ):
                await played.beat(slots=[])
                await desire(admin, WARM)

                async def watches() -> bool:
                    shown = await placement(other)
                    return not shown["placing"] and [pool["missing"] for pool in shown["pools"]] == [1]

                await until(watches)
                assert loads(played) == 0
                one.stop.ask()
                await one.ended
                await until(lambda: places(other))
                await played.hears(LoadModel)

    async def places(client: httpx.AsyncClient) -> bool:
        return bool((await placement(client))["placing"])

    asyncio.run(scene())


def test_a_flap_of_the_fleet_reloads_nothing(postgres: str) -> None:
    """All sockets close, and come back with a register and, a moment later, a heartbeat."""
    names = ("one", "two", "three")

    async def scene() -> None:
        async with coordinator(postgres, QUICK, pace=PACE) as served, served.client(served.admin_key) as admin:
            await desire(admin, {"models": [{"id": "demo", "source": "s", "min_warm": 3}]})
            heard = [await connection(served, admin, slots=[slot()]) for _ in range(3)]
            assert heard == [0, 0, 0]

    async def connection(served: Running, admin: httpx.AsyncClient, slots: list[Slot]) -> int:
        """How many loads all of them are told in one connection, which is then gone for a while."""
        async with AsyncExitStack() as stack:
            played = [
                await stack.enter_async_context(provider(served, stays_silent, name, beats=False)) for name in names
            ]
            await asyncio.sleep(0.3)
            for one in played:
                await one.beat(slots=slots)
            await until(lambda: all_warm(admin))
            await asyncio.sleep(0.3)
            told = sum(loads(one) for one in played)
        await asyncio.sleep(0.5)
        return told

    async def all_warm(admin: httpx.AsyncClient) -> bool:
        pools = (await placement(admin))["pools"]
        return [len(pool["warm"]) for pool in pools] == [3]

    asyncio.run(scene())


def test_a_real_provider_is_told_to_load_a_real_model(postgres: str, tmp_path: Path) -> None:
    """The provider is configured to load nothing by itself."""
    config = tmp_path / ".config" / "darkbloom" / "provider.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[provider]\nmemory_reserve_gb = 0.5\n[models]\npreload = []\n")
    body = {"models": [{"id": MODEL, "source": MODEL, "pools": [{"providers": "real-*", "min_warm": 1}]}]}
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 8, "messages": [COUNT]}

    async def scene() -> None:
        async with coordinator(postgres, QUICK, pace=PACE) as served, served.client(served.admin_key) as admin:
            url, data = ws_url(served.url), ("--data-dir", str(tmp_path / "data"))
            start = ("provider", "start", "--coordinator", url, "--token", served.provider_token, "--model", MODEL)
            with running(tmp_path / "log", *start, "--name", "real-1", *data, HOME=str(tmp_path)):

                async def slots() -> list[str]:
                    return [one["state"] for one in (await admin.get("/v1/fleet/real-1")).json().get("slots", ())]

                async def listed() -> bool:
                    return (await admin.get("/v1/fleet/real-1")).status_code == 200

                await until(listed, 60)
                await asyncio.sleep(0.5)
                assert await slots() == []
                await desire(admin, body)

                async def warm() -> bool:
                    return await slots() == ["idle"]

                await until(warm, 60)
                async with served.client() as client:
                    said = (await client.post("/v1/chat/completions", json=asked)).json()
                assert said["choices"][0]["message"]["content"].startswith("3, 4")

    asyncio.run(scene())


def test_the_lock_is_one_sessions_and_ends_with_it(postgres: str) -> None:
    async def scene() -> None:
        one, two = Leadership(postgres, PLACING + 1), Leadership(postgres, PLACING + 1)
        try:
            assert [await one.held(), await two.held(), await one.held()] == [True, False, True]
            with psycopg.connect(plain(postgres), autocommit=True) as admin:
                holder = "select pid from pg_locks where locktype = 'advisory' and granted and objid = %s"
                (pid,) = admin.execute(holder, [(PLACING + 1) % 2**32]).fetchone() or (None,)
                admin.execute("select pg_terminate_backend(%s, 5000)", [pid])
            with pytest.raises(StoreDown):
                await one.held()
            assert await two.held()
            assert not await one.held()
            await two.close()
            await until(one.held)
        finally:
            await one.close()
            await two.close()

    asyncio.run(scene())


def test_nobody_holds_the_lock_of_a_database_that_is_away() -> None:
    async def scene() -> None:
        away = Leadership("postgresql://nobody@127.0.0.1:1/none")
        with pytest.raises(StoreDown):
            await away.held()
        await away.close()

    asyncio.run(scene())
