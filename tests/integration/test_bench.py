"""`darkbloom-py bench serving` against a real server whose engine is simulated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import free_port, health, run, running, until
from tests.soak import SOAK

KEY = "a key"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("bench") / "local.log"
    named = ("local", "--model", "darkbloom-demo", "--backend", "sim", "--port", str(port), "--api-key", KEY)
    with running(log, *named, DARKBLOOM_SIM_DEVICE="m3-max") as command:
        url = f"http://127.0.0.1:{port}"
        until(lambda: health(url) == "ok" or command.process.poll() is not None, what="health ok")
        assert command.process.poll() is None, command.output
        yield url


def bench(tmp_path: Path, url: str, *arguments: str, key: str = KEY) -> dict[str, Any]:
    done = run(tmp_path / "log", "bench", "serving", "--url", url, "--api-key", key, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("arrivals", [("--streams", "4"), ("--rate", "40")])
def test_every_token_asked_for_is_counted_and_nothing_is_impossible(
    tmp_path: Path, url: str, arrivals: tuple[str, str]
) -> None:
    found = bench(tmp_path, url, *arrivals, "--requests", "12", "--prompt-tokens", "16,100", "--output-tokens", "8")
    assert found["model"] == "darkbloom-demo"
    assert found["load"]["prompts"] == "token ids"
    assert (found["answered"], found["unanswered"], found["rejected"]) == (12, [], [])
    assert (found["output_tokens"], found["prompt_tokens"]) == (12 * 8, 6 * 116)
    assert found["tokens_per_s"] == pytest.approx(96 / found["duration_s"])
    assert 0 < found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"] <= found["latency_ms"]["p99"]
    # Seven decode steps, none of them faster than the device launches one.
    assert found["latency_ms"]["p50"] >= 7


def test_for_people_it_is_a_table(tmp_path: Path, url: str) -> None:
    done = run(tmp_path / "log", "bench", "serving", "--url", url, "--api-key", KEY, "--requests", "2")
    assert done.returncode == 0
    assert "time to first token" in done.stdout
    assert "2 of 2 answered, 128 tokens" in done.stdout


@pytest.mark.parametrize(("key", "port", "said"), [("another", None, "401"), (KEY, 1, "lists no model")])
def test_what_cannot_be_measured_is_one_clear_line(
    tmp_path: Path, url: str, key: str, port: int | None, said: str
) -> None:
    where = url if port is None else f"http://127.0.0.1:{port}"
    done = run(tmp_path / "log", "bench", "serving", "--url", where, "--api-key", key)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not SOAK, reason="starts a coordinator, Postgres and a fleet once more: DARKBLOOM_SOAK=1")
def test_a_fleet_is_measured_with_processes_of_its_own(tmp_path: Path) -> None:
    told = (
        "--part",
        "idle",
        "--part",
        "relay",
        "--providers",
        "5",
        "--seconds",
        "1",
        "--streams",
        "4",
        "--tokens",
        "16",
    )
    done = run(tmp_path / "log", "bench", "fleet", *told, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    relay = found["relay"]
    assert (relay["chunks"], relay["tokens_missing"], relay["unanswered"]) == (64, 0, 0)
    assert relay["lateness"] > 0
    assert relay["cpu_us_per_chunk"] > 0
    assert run(tmp_path / "log", "bench", "fleet", "--part", "none").returncode == 2
