"""The store against a real Postgres: the schema, the queries, and what they do twice."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect

from coordinator import journal
from coordinator.config import Settings, Timings
from coordinator.errors import BadConfiguration, StoreAway, StoreDown
from coordinator.hub import Hub
from coordinator.keys import hashed, new_secret
from coordinator.recorder import Recorder
from coordinator.serve import Stop, bind, run
from coordinator.store.postgres import Store, driver_url
from coordinator.store.records import (
    Desired,
    DesiredList,
    JobOutcome,
    MemoryTables,
    Pool,
    Sighting,
    TokenKind,
    Touch,
    Usage,
)
from coordinator.store.schema import migrate, migrations, unconnected
from coordinator.store.tables import Base
from provider.memory.floors import SHIPPED_FLOORS, SHIPPED_RESIDENCY_BYTES
from provider.protocol import DesiredModel
from tests.integration.coordinator_harness import healthy, new_database, postgres, rows, scratch

__all__ = ["postgres"]

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
USAGE = Usage(
    job_id="j1",
    token_id=1,
    endpoint="/v1/completions",
    model="demo",
    provider_id="p1",
    attempts=1,
    outcome=JobOutcome.COMPLETED,
    code=None,
    prompt_tokens=7,
    completion_tokens=3,
    chunks=3,
    parks=0,
    recomputes=0,
    started_at=NOW,
    finished_at=NOW,
)


def test_the_models_are_what_the_migrations_make(postgres: str) -> None:
    database = new_database(postgres)
    migrate(database)
    engine = create_engine(database)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_every_migration_can_be_taken_back(postgres: str) -> None:
    database = new_database(postgres)
    migrate(database)
    config = Config()
    config.set_main_option("script_location", str(migrations()))
    engine = create_engine(database)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()
    migrate(database)
    assert rows(database, "select count(*) from floors") == [(len(SHIPPED_FLOORS),)]


def test_coordinators_that_start_together_migrate_once(postgres: str) -> None:
    database = new_database(postgres)
    with ThreadPoolExecutor() as pool:
        list(pool.map(migrate, [database] * 3))
    assert rows(database, "select count(*) from alembic_version") == [(1,)]


def test_tokens_are_found_by_hash_until_revoked(postgres: str) -> None:
    async def scene() -> None:
        store = Store(postgres)
        secret = new_secret()
        made = await store.add_token(TokenKind.API, "one", hashed(secret), NOW)
        assert await store.live_tokens([hashed(secret), hashed(new_secret())]) == {hashed(secret): made}
        await store.write([Touch(made.id, NOW), Touch(made.id, NOW - timedelta(hours=1))])
        (found,) = (await store.live_tokens([hashed(secret)])).values()
        assert found.last_used_at == NOW
        assert [token.id for token in await store.revoke_tokens(str(made.id), NOW)] == [made.id]
        assert await store.live_tokens([hashed(secret)]) == {}
        assert await store.revoke_tokens("one", NOW) == []
        assert await store.revoke_tokens("9" * 30, NOW) == []
        await store.close()

    asyncio.run(scene())


def test_replacing_a_token_twice_with_one_secret_keeps_it(postgres: str) -> None:
    async def scene() -> None:
        store = Store(postgres)
        first, second = hashed(new_secret()), hashed(new_secret())
        for sha256 in (first, second, second):
            await store.replace_token(TokenKind.API, "up", sha256, NOW)
        assert list(await store.live_tokens([first, second])) == [second]
        await store.close()

    asyncio.run(scene())


def test_a_job_is_billed_once(postgres: str) -> None:
    database = new_database(postgres)
    migrate(database)

    async def scene() -> None:
        store = Store(database)
        await store.write([USAGE, replace(USAGE, completion_tokens=99)])
        await store.write([USAGE])
        await store.close()

    asyncio.run(scene())
    assert rows(database, "select job_id, completion_tokens from usage") == [("j1", 3)]


def test_a_record_the_store_refuses_does_not_take_the_others_with_it(postgres: str, tmp_path: Path) -> None:
    database = new_database(postgres)
    migrate(database)
    bad = Sighting("p\0", "name", "0.9.0", "sim", "chip", NOW)

    async def scene() -> None:
        store = Store(database)
        hub = Hub(Timings(), lambda: 0.0, lambda _: None)
        recorder = Recorder(store.write, hub.metrics, journal.begun(tmp_path))
        for record in (bad, USAGE, replace(bad, provider_id="p1")):
            recorder.add(record)
        writing = asyncio.create_task(recorder.run())
        await recorder.flush(5)
        writing.cancel()
        await asyncio.wait({writing})
        recorder.close()
        await store.close()

    asyncio.run(scene())
    assert rows(database, "select job_id from usage") == [("j1",)]
    assert rows(database, "select provider_id from providers") == [("p1",)]


def test_an_old_sighting_that_is_stored_late_changes_nothing(postgres: str) -> None:
    database = new_database(postgres)
    migrate(database)
    now = Sighting("p1", "new", "0.9.1", "sim", "chip", NOW)

    async def scene() -> None:
        store = Store(database)
        await store.write([now, replace(now, name="old", seen_at=NOW - timedelta(hours=1))])
        await store.close()

    asyncio.run(scene())
    assert rows(database, "select name from providers") == [("new",)]


def test_the_migrated_tables_are_what_the_provider_ships(postgres: str) -> None:
    """A provider's floors and the rows that the coordinator judges it by change in one commit."""
    database = new_database(postgres)
    migrate(database)

    async def scene() -> MemoryTables:
        store = Store(database)
        tables = await store.memory_tables()
        await store.close()
        return tables

    tables = asyncio.run(scene())
    assert tables.floors == SHIPPED_FLOORS
    assert {id: one.resident_bytes for id, one in tables.residency.items()} == SHIPPED_RESIDENCY_BYTES
    assert all(one.basis and one.since for one in tables.residency.values())


def test_desired_models_have_a_revision_that_only_rises(postgres: str) -> None:
    database = new_database(postgres)
    migrate(database)
    pools = (Pool("gpu-*", 1), Pool("mac-*", 2))
    one = (wanted("b", "/b"), Desired(DesiredModel(id="a", source="hub/a", digest="d"), pools))

    async def scene() -> None:
        store = Store(database)
        assert await store.desired() is None
        assert await store.desire(one, 1, NOW) == DesiredList(1, one)
        assert await store.desire(one, 1, NOW) == DesiredList(1, one)
        otherwise = (one[0], Desired(one[1].model, pools[::-1]))
        assert (await store.desire(otherwise, 1, NOW)).revision == 1
        assert (await store.desire([], 1, NOW)).revision == 2
        assert await store.desired() == DesiredList(2, ())
        assert (await store.desire(one, 1, NOW)).revision == 3
        assert await store.desired() == DesiredList(3, one)
        fewer = (one[0], Desired(one[1].model, pools[:1]))
        assert (await store.desire(fewer, 1, NOW)).revision == 4
        lists = [[wanted(f"m{number}", "x")] for number in range(4)]
        made = await asyncio.gather(*(store.desire(each, 1, NOW) for each in lists))
        assert sorted(each.revision for each in made) == [5, 6, 7, 8]
        last = max(made, key=lambda each: each.revision)
        assert await store.desired() == last
        await store.close()

    asyncio.run(scene())


def wanted(id: str, source: str) -> Desired:
    return Desired(DesiredModel(id=id, source=source))


def test_a_database_that_is_away_is_store_down() -> None:
    async def scene() -> None:
        store = Store("postgresql://nobody@127.0.0.1:1/none")
        with pytest.raises(StoreDown):
            await store.tokens()
        await store.close()

    asyncio.run(scene())
    with pytest.raises(StoreAway, match=r"The database at 127\.0\.0\.1:1 cannot be reached: ") as away:
        migrate("postgresql://nobody:secret@127.0.0.1:1/none")
    assert "secret" not in str(away.value)


def test_a_database_that_is_not_there_is_not_waited_for(postgres: str) -> None:
    with pytest.raises(StoreDown, match=r"does not let us in.*does not exist") as refused:
        migrate(postgres.replace("@/postgres?", "@/nowhere?"))
    assert not isinstance(refused.value, StoreAway)


@pytest.mark.parametrize(
    ("said", "waiting_helps"),
    [
        ("connection is bad: connection to server failed: Connection refused", True),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", True),
        ("connection timeout expired", True),
        ("connection failed: FATAL: the database system is starting up", True),
        ("connection failed: FATAL: the database system is not yet accepting connections", True),
        ("connection failed: FATAL: sorry, too many clients already", True),
        ('connection failed: FATAL: password authentication failed for user "u"', False),
        ('connection failed: FATAL: database "none" does not exist', False),
        ('connection failed: FATAL: role "nobody" does not exist', False),
    ],
)
def test_what_a_database_says_that_takes_no_connection_tells_whether_waiting_helps(
    said: str, waiting_helps: bool
) -> None:
    told = unconnected("postgresql://u:secret@db:5433/d", said)
    assert isinstance(told, StoreAway) is waiting_helps
    assert str(told).startswith("The database at db:5433 ")
    assert "secret" not in str(told)


def test_a_start_waits_for_its_database_says_so_and_may_be_ended(
    postgres: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.store.lifetime.REACH_EVERY_S", 0.05)

    async def scene(directory: Path) -> None:
        real = Path(postgres.partition("host=")[2].partition("&")[0])
        away = directory / "away"
        url = postgres.replace(str(real), str(away)).replace("postgres@", "postgres:secret@")
        for comes in (False, True):
            stop, listener = Stop(), bind("127.0.0.1", 0)
            running = asyncio.create_task(run(Settings(directory, url, port=0), listener, stop))
            at = f"http://127.0.0.1:{listener.getsockname()[1]}"
            for _ in range(500):
                if "database_awaited" in caplog.text:
                    break
                await asyncio.sleep(0.02)
            if not comes:
                caplog.clear()
            async with httpx.AsyncClient(base_url=at) as client:
                health = await client.get("/health")
                assert (health.status_code, health.json()) == (503, {"status": "starting"})
            if comes:
                away.symlink_to(real)
                await healthy(at, running)
            stop.ask()
            async with asyncio.timeout(10):
                await running
        assert f"at={away}:" in caplog.text
        assert "secret" not in caplog.text

    with scratch() as directory, caplog.at_level(logging.INFO):
        asyncio.run(scene(directory))


@pytest.mark.parametrize("url", ["postgres://u:p@h:1/d", "postgresql://u:p@h:1/d", "postgresql+asyncpg://u:p@h:1/d"])
def test_any_way_of_writing_a_url_means_the_driver_that_is_installed(url: str) -> None:
    assert driver_url(url) == "postgresql+psycopg://u:p@h:1/d"


@pytest.mark.parametrize("url", ["", "demo", "mysql://u@h/d", "sqlite:///x"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(BadConfiguration):
        driver_url(url)
