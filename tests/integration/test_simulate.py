"""`darkbloom-py fleet simulate` against a real coordinator."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from typer.testing import CliRunner

from provider.cli import application
from provider.errors import ConfigError, WorkerError
from provider.simulate.machines import MACHINES, machines
from tests.integration.client import MODEL
from tests.integration.processes import free_port, run, running, until
from tests.integration.test_fleet import Fleet

PROVIDERS = 30


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        fleet = Fleet(tmp_path_factory.mktemp("simulated"), free_port(), stack)
        fleet.start_coordinator()
        fleet.key, fleet.token = fleet.create_token("api"), fleet.create_token("provider")
        yield fleet


def arguments(fleet: Fleet, *more: str) -> tuple[str, ...]:
    url = f"ws://127.0.0.1:{fleet.port}/ws/provider"
    return ("fleet", "simulate", "--coordinator", url, "--token", fleet.token, *more)


def test_machines_are_dealt_out_in_turn() -> None:
    assert [one.device.name for one in machines(["m3-max", "h100"], 5)] == [
        "m3-max",
        "h100",
        "m3-max",
        "h100",
        "m3-max",
    ]
    with pytest.raises(ConfigError, match="m3-max, h100"):
        machines(["z80"], 1)


def test_a_fleet_of_which_nobody_was_ever_connected_has_failed() -> None:
    url = f"ws://127.0.0.1:{free_port()}/ws/provider"
    told = [
        "fleet",
        "simulate",
        "--providers",
        "1",
        "--coordinator",
        url,
        "--token",
        "dbk_x",
        "--seconds",
        "0.3",
        "--json",
    ]
    done = CliRunner().invoke(application(told), told)
    assert isinstance(done.exception, WorkerError)
    assert json.loads(done.stdout)["connected"] == 0


def test_a_simulated_fleet_serves_and_is_the_same_one_when_it_comes_again(fleet: Fleet, tmp_path: Path) -> None:
    simulated = arguments(fleet, "--providers", str(PROVIDERS), "--machine", "m3-max", "--machine", "h100", "--json")
    ids = []
    for _ in range(2):
        log = tmp_path / "simulate.log"
        with running(log, *simulated) as command:
            until(lambda: alive(fleet) == PROVIDERS, what="all of them")
            shown = fleet.shown()
            assert {one["hardware"]["memory_kind"] for one in shown.values()} == {"unified", "discrete"}
            assert {one["hardware"]["memory_bytes"] for one in shown.values()} == {
                MACHINES["m3-max"].memory_bytes, MACHINES["h100"].memory_bytes,
            }  # fmt: skip
            answers = asyncio.run(ask(fleet, 20))
            assert answers == [5] * 20
            ids.append({name: one["id"] for name, one in shown.items()})
            assert command.interrupt() == 0
        totals = json.loads(command.output.splitlines()[-1])
        assert (totals["providers"], totals["connected"]) == (PROVIDERS, PROVIDERS)
        assert (totals["requests"], totals["tokens"], totals["running"]) == (20, 100, 0)
    assert ids[0] == ids[1]
    assert len(set(ids[0].values())) == PROVIDERS


def alive(fleet: Fleet) -> int:
    return sum(one["state"] == "alive" and bool(one["slots"]) for one in fleet.shown().values())


async def ask(fleet: Fleet, count: int) -> list[int]:
    """The completion tokens of so many chats at once."""
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key) as client:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 5}
        extra = {"ignore_eos": True}
        answers = await asyncio.gather(
            *(client.chat.completions.create(**asked, extra_body=extra) for _ in range(count))  # type: ignore[call-overload]
        )
    return [answer.usage.completion_tokens for answer in answers]


def test_a_fleet_that_is_refused_says_why(fleet: Fleet, tmp_path: Path) -> None:
    wrong = arguments(fleet, "--providers", "2")
    wrong = tuple("dbk_" + "x" * 40 if one == fleet.token else one for one in wrong)
    done = run(tmp_path / "log", *wrong)
    assert done.returncode == 1
    assert "token was refused" in done.stderr
    done = run(tmp_path / "log", *arguments(fleet, "--providers", "1", "--model", str(tmp_path / "none")))
    assert done.returncode == 1
    assert "none" in done.stderr
