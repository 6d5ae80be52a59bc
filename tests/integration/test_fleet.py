"""A coordinator and providers as the processes of an operator: who survives what, and what becomes of the streams."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator.store import postmaster
from coordinator.store.records import TokenKind
from provider.models.bundled import BUNDLED_MODEL_DIR
from tests.integration.client import MODEL, Api, Stream, counting
from tests.integration.coordinator_harness import new_tokens
from tests.integration.processes import Command, free_port, gone, health, run, running, until

ENDLESS = 4000
RESUME_WITHIN_S = 3


@dataclass
class Fleet:
    """A coordinator, and what its providers need. `stack` ends whatever is started in it."""

    root: Path
    port: int
    stack: contextlib.ExitStack
    coordinator: Command | None = None
    key: str = ""
    token: str = ""

    @property
    def api(self) -> Api:
        return Api(self.url, self.key)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> tuple[str, str]:
        return ("--data-dir", str(self.root / "data"))

    def start_coordinator(self) -> None:
        log = self.root / "coordinator.log"
        serve = ("coordinator", "serve", "--port", str(self.port), *self.data)
        told = {"DARKBLOOM_RESUME_WITHIN_S": str(RESUME_WITHIN_S)}
        self.coordinator = self.stack.enter_context(running(log, *serve, **told))
        until(lambda: health(self.url) == "ok", what="the coordinator")

    def create_token(self, kind: str) -> str:
        """In the coordinator's database, without the seconds of another process."""
        server = postmaster.running((self.root / "data" / "postgres").resolve())
        assert server is not None
        (secret,) = asyncio.run(new_tokens(server.url, (TokenKind(kind),)))
        return secret

    def arguments(self, name: str) -> tuple[str, ...]:
        return (
            "provider", "start", "--coordinator", f"ws://127.0.0.1:{self.port}/ws/provider", "--token", self.token,
            "--model", MODEL, "--name", name, *self.provider_data(name),
        )  # fmt: skip

    def provider_data(self, name: str) -> tuple[str, str]:
        return ("--data-dir", str(self.root / name))

    @contextlib.contextmanager
    def provider(self, name: str) -> Iterator[Command]:
        with running(self.root / f"{name}.log", *self.arguments(name)) as command:
            yield command

    def shown(self) -> dict[str, dict[str, Any]]:
        """What /v1/fleet says of each provider, by name."""
        return {one["name"]: one for one in self.api.get("/v1/fleet").json()["providers"]}

    def until_alive(self, *names: str) -> None:
        def alive() -> bool:
            shown = self.shown()
            return all(name in shown and shown[name]["state"] == "alive" for name in names)

        until(alive, what=f"{names} in the fleet")

    def until_idle(self) -> None:
        """As the coordinator sees it: then the next streams go to one provider each."""

        def idle() -> bool:
            alive = [one for one in self.shown().values() if one["state"] == "alive"]
            busy = (one["requests_held"] or slot["running"] for one in alive for slot in one["slots"])
            return all(one["slots"] for one in alive) and not any(busy)

        until(idle, what="an idle fleet")

    def told(self, name: str) -> dict[str, Any]:
        """The state file of a provider: written every second."""
        told: dict[str, Any] = json.loads((self.root / name / "daemon-state.json").read_text())["details"]
        return told

    def at_work(self, *names: str) -> int:
        """Sequences that these providers work on."""
        return sum(slot["running"] for name in names for slot in self.told(name)["slots"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        fleet = Fleet(tmp_path_factory.mktemp("fleet"), free_port(), stack)
        fleet.start_coordinator()
        fleet.key, fleet.token = fleet.create_token("api"), fleet.create_token("provider")
        for name in ("one", "two"):
            stack.enter_context(fleet.provider(name))
        fleet.until_alive("one", "two")
        yield fleet


def test_both_providers_are_listed_with_what_they_serve(fleet: Fleet) -> None:
    shown = fleet.shown()
    assert {"one", "two"} <= set(shown)
    assert shown["one"]["id"] != shown["two"]["id"]
    for name in ("one", "two"):
        (model,) = shown[name]["models"]
        assert (model["id"], model["routable"], model["reason"]) == (MODEL, True, None)
        assert shown[name]["hardware"]["memory_bytes"] > 0
    assert [one["id"] for one in fleet.api.get("/v1/models").json()["data"]] == [MODEL]


def test_the_openai_sdk_streams_the_text_that_local_gives(fleet: Fleet, tmp_path: Path) -> None:
    asked: list[Any] = [counting(3, 30), counting(5, 30, temperature=0.8, seed=3)]
    port = free_port()
    with running(tmp_path / "log", "local", "--model", MODEL, "--port", str(port)):
        local = Api(f"http://127.0.0.1:{port}")
        until(lambda: health(local.url) == "ok", what="local")
        expected = [local.text(body) for body in asked]
    with fleet.api.sdk() as client:
        for body, text in zip(asked, expected, strict=True):
            assert client.chat.completions.create(**body).choices[0].message.content == text
            chunks = list(client.chat.completions.create(**body, stream=True))
            assert "".join(one.choices[0].delta.content or "" for one in chunks) == text
            assert chunks[-1].choices[0].finish_reason == "length"
    assert expected[0].startswith("3, 4, 5")


def test_when_a_provider_is_killed_only_its_streams_end(fleet: Fleet) -> None:
    body = counting(1, 150)
    alone = fleet.api.text(body)
    with fleet.provider("killed") as killed:
        fleet.until_alive("killed")
        worker = killed.find("provider.worker")
        fleet.until_idle()
        streams = [Stream(fleet.api, body).begun() for _ in range(3)]
        killed.process.kill()
        killed.process.wait()
        until(lambda: any(not stream.running for stream in streams), 30, "the end of the stream")
        ended = [stream.ended() for stream in streams]
        (lost,) = [stream for stream in ended if stream.error is not None]
        assert lost.error is not None
        assert (lost.status, lost.error["code"]) == (200, "provider_lost")
        assert lost.done
        assert alone.startswith(lost.text)
        assert [stream.text for stream in ended if stream is not lost] == [alone] * 2
        assert all(stream.done for stream in ended)
        assert all(fleet.api.text(counting(3, 8)).startswith("3, 4") for _ in range(3))
        until(lambda: gone([worker]), 10, "the end of the worker")
    shown = fleet.shown()["killed"]
    assert shown["state"] == "disconnected"
    assert shown["models"][0]["reason"] == "provider_disconnected"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_cancels_at_the_provider(fleet: Fleet, stream: bool) -> None:
    until(lambda: fleet.at_work("one", "two") == 0, what="idle providers")
    with fleet.api.vanishing(counting(1, ENDLESS, stream=stream)):
        until(lambda: fleet.at_work("one", "two") == 1, what="a running sequence")
    until(lambda: fleet.at_work("one", "two") == 0, 10, "its end")


def test_errors_come_through_as_the_provider_words_them(fleet: Fleet) -> None:
    status, error = fleet.api.error({**counting(1, 3), "messages": [{"role": "user", "content": "x " * 5000}]})
    assert (status, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 4096)
    assert error["n_prompt_tokens"] > 5000
    assert fleet.api.error(counting(1, 0))[1]["param"] == "max_tokens"
    assert fleet.api.error({**counting(1, 1), "model": "m"})[1]["code"] == "model_not_found"
    assert fleet.api.error(b"{")[0] == 400


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--token": "dbk_" + "x" * 40}, "coordinator token create --kind provider"),
        ({"--coordinator": "http://127.0.0.1/"}, "ws://HOST:PORT"),
    ],
)
def test_what_cannot_get_better_ends_the_provider_with_a_clear_error(
    fleet: Fleet, tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    arguments = list(fleet.arguments("refused"))
    for flag, value in changed.items():
        arguments[arguments.index(flag) + 1] = value
    done = run(tmp_path / "log", *arguments)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert said in last
    assert "Traceback" not in done.stderr
    assert fleet.token not in done.stderr
    assert not (fleet.root / "refused" / "daemon-state.json").exists()


def write_model(directory: Path, padding_bytes: int = 0) -> Path:
    """The demo model under another name, which nobody has measured; and, with padding, of any size (a sparse file)."""
    shutil.copytree(BUNDLED_MODEL_DIR, directory)
    if padding_bytes:
        (directory / "model.safetensors.index.json").unlink()
        tensor = {"dtype": "U8", "shape": [padding_bytes], "data_offsets": [0, padding_bytes]}
        header = json.dumps({"padding": tensor}).encode()
        with (directory / "padding.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + padding_bytes)
    return directory


def test_an_operator_loads_and_unloads_models_of_a_provider(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / ".config" / "darkbloom" / "provider.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[provider]\nmemory_reserve_gb = 0.5\n[models]\npreload = ["{MODEL}"]\n')
    others = [write_model(tmp_path / "second"), write_model(tmp_path / "huge", 2**40)]
    models = [word for path in others for word in ("--model", str(path))]
    admin = Api(fleet.url, fleet.create_token("admin"))

    def order(what: str, model: str, **more: str) -> tuple[int, dict[str, Any]]:
        answer = admin.post(json.dumps({"model": model, **more}).encode(), f"/v1/admin/providers/many/{what}")
        return answer.status_code, answer.json()

    def last_word(model: str) -> Any:
        return next((one for one in fleet.shown()["many"]["prefetches"] if one["model_id"] == model), {}).get("status")

    def loaded() -> set[str]:
        return {slot["model"] for slot in fleet.shown()["many"]["slots"]}

    with running(fleet.root / "many.log", *fleet.arguments("many"), *models, HOME=str(tmp_path)):
        fleet.until_alive("many")
        until(lambda: loaded() == {MODEL}, what="the preloaded model")
        cold = {model["id"]: model for model in fleet.shown()["many"]["models"]}
        assert (cold["second"]["cold_load"], cold["second"]["routable"]) == ("admitted", True)
        assert (cold["huge"]["cold_load"], cold["huge"]["reason"]) == ("refused", "memory_cap")
        assert fleet.shown()["many"]["reserve"] == {"activation_reserve_bytes": 11 * 2**29, "source": "reported"}

        status, told = order("load", "second")
        assert (status, told["status"]) == (200, "loaded"), told
        until(lambda: loaded() == {MODEL, "second"}, what="the heartbeat that shows it")
        assert fleet.api.text({**counting(3, 8), "model": "second"}).startswith("3, 4")
        status, told = order("load", "huge")
        assert (status, told["error"]["code"]) == (507, "memory_cap")
        assert told["error"]["required_bytes"] > 2**40 > told["error"]["free_bytes"]
        assert loaded() == {MODEL, "second"}
        assert order("load", "nobody's")[0] == 404

        status, told = order("unload", "second")
        assert (status, told["status"], loaded()) == (200, "unloaded", {MODEL})
        assert fleet.api.text({**counting(3, 8), "model": "second"}).startswith("3, 4")
        assert loaded() == {MODEL, "second"}
        (last,) = [one for one in fleet.shown()["many"]["loads"] if one["model_id"] == "huge"]
        assert last["status"] == "failed"

        third = str(write_model(tmp_path / "third"))
        assert order("prefetch", "forged", source=third, digest="0" * 64)[0] == 202
        until(lambda: last_word("forged") == "failed", what="the refusal of another digest")
        assert order("prefetch", "third", source=third)[0] == 202
        until(lambda: last_word("third") == "verified", what="the model that was fetched")
        until(lambda: "third" in {one["id"] for one in fleet.shown()["many"]["models"]}, what="its advertisement")
        assert fleet.api.text({**counting(3, 8), "model": "third"}).startswith("3, 4")
        assert "forged" not in {one["id"] for one in fleet.shown()["many"]["models"]}


def test_a_provider_in_the_background_is_seen_keeps_its_identity_and_stops_in_order(fleet: Fleet) -> None:
    log, data = fleet.root / "log", fleet.provider_data("background")
    started = run(log, *fleet.arguments("background"), "--detach")
    assert started.returncode == 0, started.stderr
    assert "runs in the background" in started.stdout
    with ended_at_last(fleet, "background") as provider:
        fleet.until_alive("background")
        told = json.loads(run(log, "provider", "status", "--json", *data).stdout)
        assert (told["running"], told["pid"], told["name"]) == (True, provider.pid, "background")
        assert told["coordinators"][0]["connected"]
        assert told["provider_id"] == fleet.shown()["background"]["id"]
        said = run(log, "provider", "status", *data).stdout
        assert "background is running" in said
        assert "connected" in said
        again = run(log, *fleet.arguments("background"))
        assert (again.returncode, again.stderr.count("\n")) == (1, 1)
        assert "already running" in again.stderr

        workers = provider.children(recursive=True)
        fleet.until_idle()
        streams = [Stream(fleet.api, counting(1, 150)).begun() for _ in range(3)]
        stopped = run(log, "provider", "stop", *data)
        assert (stopped.returncode, "Stopped" in stopped.stdout) == (0, True)
        assert gone([provider, *workers])
        assert [stream.ended().finish_reason for stream in streams] == ["length"] * 3
        assert all(stream.done for stream in streams)
    not_running = run(log, "provider", "status", "--json", *data)
    assert (not_running.returncode, json.loads(not_running.stdout)) == (1, {"running": False})
    with fleet.provider("background"):
        fleet.until_alive("background")
        assert fleet.shown()["background"]["id"] == told["provider_id"]
        assert fleet.shown()["background"]["generation"] > 1


@contextlib.contextmanager
def ended_at_last(fleet: Fleet, name: str) -> Iterator[psutil.Process]:
    provider = psutil.Process(json.loads((fleet.root / name / "daemon-state.json").read_text())["pid"])
    try:
        yield provider
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            provider.kill()


def test_a_refused_provider_in_the_background_is_told_at_once(fleet: Fleet, tmp_path: Path) -> None:
    arguments = list(fleet.arguments("refused"))
    arguments[arguments.index("--token") + 1] = "dbk_" + "x" * 40
    done = run(tmp_path / "log", *arguments, "--detach")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the provider could not start")
    assert "token was refused" in done.stderr
    assert done.stderr.count("\n") == 1


def test_after_a_coordinator_is_killed_its_successor_finds_keys_and_providers(fleet: Fleet) -> None:
    assert fleet.coordinator is not None
    stream = Stream(fleet.api, counting(1, ENDLESS)).begun()
    os.kill(fleet.coordinator.process.pid, signal.SIGKILL)
    fleet.coordinator.process.wait()
    assert not stream.ended(10).done
    until(lambda: fleet.at_work("one", "two") == 0, 10, "the end of what nobody reads")
    fleet.start_coordinator()
    fleet.until_alive("one", "two")
    assert fleet.api.text(counting(3, 8)).startswith("3, 4")
