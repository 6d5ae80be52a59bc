"""What a coordinator that is killed leaves behind is stored by the next one: no job is lost, and none billed twice."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.serve import Stop
from coordinator.store.schema import migrate
from provider.protocol import InferenceRequest
from tests.integration.coordinator_harness import (
    Provider,
    Running,
    chat,
    counts,
    new_database,
    new_tokens,
    postgres,
    process,
    provider,
    rows,
)

__all__ = ["postgres"]


async def says_five_words_and_no_more(provider: Provider, request: InferenceRequest) -> None:
    if request.body.get("max_tokens"):
        await counts(provider, request)
        return
    await provider.accept(request)
    for seq in range(5):
        await provider.chunk(request, seq, "word ")


def test_jobs_that_ran_and_jobs_not_yet_stored_outlive_kill_9(postgres: str, tmp_path: Path) -> None:
    database = new_database(postgres)
    migrate(database)
    where = ("--database-url", database, "--data-dir", str(tmp_path / "data"))
    key, token = asyncio.run(new_tokens(database))

    def drafted() -> bool:
        """Whether the last draft has the five words."""
        (file,) = (tmp_path / "data").rglob("*.log")
        lines = [line for line in file.read_text().splitlines() if '"draft"' in line]
        return bool(lines) and '"completion_tokens":5' in lines[-1]

    async def streaming(url: str, child: Any) -> None:
        running = Running(url, database, key, "", token, Stop(), asyncio.create_task(asyncio.sleep(0)))
        async with provider(running, says_five_words_and_no_more), running.client() as client:
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=9))).status_code == 200
            async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer:
                assert answer.status_code == 200
                await until(drafted)
                child.kill()
                child.wait()

    with process(*where) as (child, url):
        asyncio.run(streaming(url, child))
    assert list((tmp_path / "data").rglob("*.log"))
    with process(*where) as (_, url):
        asyncio.run(until(lambda: len(rows(database, "select 1 from usage")) == 2))
    query = "select outcome, code, completion_tokens, provider_id is not null from usage order by started_at"
    assert rows(database, query) == [("completed", None, 3, True), ("failed", "coordinator_lost", 5, True)]
    assert not list((tmp_path / "data").rglob("*.log"))


async def until(wanted: Callable[[], bool]) -> None:
    for _ in range(800):
        if await asyncio.to_thread(wanted):
            return
        await asyncio.sleep(0.03)
    raise AssertionError("it does not come")
