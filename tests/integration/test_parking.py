"""Chats that are parked, on a real server with the bundled model: what goes over the wire."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.client import COMPLETION, MODEL, Api, Stream, counting
from tests.integration.processes import NO_TLS, Command, free_port, gone, health, running, until
from tests.soak import SOAK

SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.8, "seed": 7})


@contextlib.contextmanager
def local(directory: Path, *flags: str, model: str = MODEL, **environment: str) -> Iterator[tuple[Command, Api]]:
    port = free_port()
    named = ("local", "--model", model, "--port", str(port), "--data-dir", str(directory / "data"), *flags)
    with running(directory / f"local-{port}.log", *named, **environment) as command:
        api = Api(f"http://127.0.0.1:{port}")
        until(lambda: health(api.url) == "ok" or command.process.poll() is not None, what="health ok")
        assert command.process.poll() is None, command.output
        yield command, api


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Where nobody is ever parked."""
    with local(tmp_path_factory.mktemp("roomy")) as (_, api):
        yield api


class Wire:
    """A streamed completion as its lines arrive, and when; read by a thread of its own."""

    def __init__(self, api: Api, body: dict[str, Any], path: str = COMPLETION, **headers: str) -> None:
        self.lines: list[tuple[float, str]] = []
        self.status = 0
        self._request = (api.url + path, {"model": MODEL, "stream": True, **body}, headers)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        url, body, headers = self._request
        with httpx.stream("POST", url, json=body, headers=headers, timeout=120, verify=NO_TLS) as response:
            self.status = response.status_code
            self.lines += [(time.monotonic(), line) for line in response.iter_lines() if line]

    def ended(self, within_s: float = 120.0) -> "Wire":
        self._thread.join(within_s)
        assert not self._thread.is_alive(), self.lines[-3:]
        return self

    @property
    def notices(self) -> list[str]:
        return [line for _, line in self.lines if line.startswith(":")]

    @property
    def data(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for _, line in self.lines if line.startswith("data: {")]

    @property
    def text(self) -> str:
        return "".join(choice["text"] for event in self.data for choice in event.get("choices", []))

    @property
    def last(self) -> dict[str, Any]:
        return self.data[-1]


def completing(prompt_tokens: int, first: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A prompt of exactly so many tokens, and an answer of exactly so many."""
    random = Random(first)
    prompt = [random.randrange(300, 900) for _ in range(prompt_tokens)]
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, **more}


def test_two_chats_outgrow_one_pool_and_both_end_while_a_third_is_refused(tmp_path: Path, roomy: Api) -> None:
    """Soak: in a pool of 2048. Else in a quarter of it all."""
    pool, short, long, answer, beyond = (one // (1 if SOAK else 4) for one in (2048, 400, 1300, 600, 2100))
    bodies = [completing(short, 1, answer), completing(long, 2, answer)]
    alone = [Wire(roomy, body).ended().text for body in bodies]
    with local(tmp_path, "--kv-pool-tokens", str(pool)) as (_, api):
        streams = [Wire(api, body) for body in bodies]
        until(lambda: len(api.states()) == 2, what="both of them")
        status, error = api.error({"model": MODEL, **completing(beyond, 3, 5)}, COMPLETION)
        assert (status, error["type"]) == (400, "exceed_context_size_error")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (beyond, pool)
        ends = [stream.ended() for stream in streams]
        assert [one.text for one in ends] == alone
        assert [one.last["choices"][0]["finish_reason"] for one in ends] == ["length", "length"]
        assert sum(one.notices.count(": preempted") for one in ends) >= 1
        assert all(": recomputed" not in one.notices for one in ends)
        assert sum(one.last["preempt"]["parks"] for one in ends) >= 1
        check_nothing_left(api, tmp_path)


def check_nothing_left(api: Api, directory: Path) -> None:
    until(lambda: api.states() == [], what="an idle engine")
    until(lambda: list((directory / "data" / "park").iterdir()) == [], what="an empty park directory")
    found = metrics(api)
    assert found["darkbloom_kv_tokens_used"] == 0
    assert found["darkbloom_requests_preempted"] == 0


def metrics(api: Api) -> dict[str, float]:
    families = text_string_to_metric_families(api.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_long_park_is_kept_alive_by_the_clock_though_the_server_is_busy(tmp_path: Path, roomy: Api) -> None:
    body = completing(20, 1, 8)
    expected = Wire(roomy, body).ended()
    knobs = {"DARKBLOOM_PREEMPT_EVERY": "5", "DARKBLOOM_PREEMPT_HOLD_S": "8"}
    with local(tmp_path, **knobs) as (_, api):
        held = Wire(api, body)
        until(lambda: bool(held.notices), what="a notice")
        chunked = Wire(api, body, **{"X-Darkbloom-Notices": "chunk"})
        silent = Wire(api, body, **{"X-Darkbloom-Notices": "off"})
        sdk = threading.Thread(target=_sdk_finishes, args=(api,))
        sdk.start()
        busy_until = time.monotonic() + 6.5
        while time.monotonic() < busy_until:
            assert Wire(api, completing(5, 3, 3)).ended().status == 200
        (slot,) = [one for one in api.get("/slots").json() if one.get("n_prompt_tokens") == 20][:1]
        assert (slot["is_preempted"], slot["is_transferring"]) == (True, False)
        for one in (held, chunked, silent):
            assert one.ended().text == expected.text
        sdk.join(60)
        assert not sdk.is_alive()
    keepalives = [at for at, line in held.lines if line == ": preempt-keepalive"]
    assert held.notices == [": preempted", *[": preempt-keepalive"] * len(keepalives), ": resumed"]
    assert len(keepalives) >= 3
    gaps = [later - earlier for earlier, later in pairwise(keepalives)]
    assert all(1.5 < gap < 2.5 for gap in gaps), gaps
    assert _one_piece(held) == _one_piece(silent) == _one_piece(expected)
    assert held.last["preempt"] == {"parks": 1, "recomputes": 0}
    assert not any(line.startswith("id:") for _, line in held.lines)
    assert chunked.notices == silent.notices == []
    assert _one_piece(chunked) == _one_piece(expected)
    assert len(_empty(chunked)) >= 3 > len(_empty(silent))


def _sdk_finishes(api: Api) -> None:
    with api.sdk() as client:
        asked: Any = counting(1, 8, stream=True)
        assert len(list(client.chat.completions.create(**asked))) > 1


def _one_piece(stream: Wire) -> tuple[set[str], str, Any]:
    """What its data events say together: how tokens are grouped into events depends on drafts and on the machine."""
    choices = [choice for event in stream.data for choice in event["choices"]]
    (finish,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    return {key for event in stream.data for key in event}, "".join(choice["text"] for choice in choices), finish


def _empty(stream: Wire) -> list[dict[str, Any]]:
    return [one for one in stream.data if all(not c["text"] and c["finish_reason"] is None for c in one["choices"])]


def test_forced_parks_change_no_text(tmp_path: Path, roomy: Api) -> None:
    """Greedy and seeded, alone and in batches of up to eight; the bundled model drafts, so a step may give a chat four
    tokens, and its second park comes after 38 at most."""
    bodies = [counting(n, 40, ignore_eos=True, **SAMPLINGS[n % 2]) for n in range(8)]
    alone = [roomy.text(body) for body in bodies]
    with local(tmp_path, DARKBLOOM_PREEMPT_EVERY="16") as (_, api):
        for chats in (1, 8):
            streams = [Stream(api, body) for body in bodies[:chats]]
            assert [stream.ended().text for stream in streams] == alone[:chats]
            told = [event["preempt"] for stream in streams for event in stream.events if "preempt" in event]
            assert told == [{"parks": 2, "recomputes": 0}] * chats
        found = metrics(api)
        assert found["darkbloom_preempt_total"] == 18
        assert found["darkbloom_preempt_bytes_total"] > 0
        check_nothing_left(api, tmp_path)


def test_the_next_start_removes_the_files_of_a_killed_provider_and_nothing_else(tmp_path: Path) -> None:
    park = tmp_path / "data" / "park"
    held = {"DARKBLOOM_PREEMPT_EVERY": "3", "DARKBLOOM_PREEMPT_HOLD_S": "600"}
    with local(tmp_path, **held) as (command, api), api.vanishing(counting(1, 50, stream=True)):
        until(lambda: "parked" in api.states(), what="a parked chat")
        with api.vanishing(counting(2, 50, stream=True)):
            until(lambda: api.states() == ["parked", "parked"], what="another")
        until(lambda: api.states() == ["parked"], what="its end, at once, though its park is held")
        worker = command.find("provider.worker")
        (left,) = park.iterdir()
        os.kill(command.process.pid, signal.SIGKILL)
        os.kill(worker.pid, signal.SIGKILL)
        command.process.wait()
        until(lambda: gone([worker]), what="the end of the worker")
    others = [park / "notes.txt", park / "model.safetensors", park / f"{os.getpid()}-1-x.safetensors"]
    for one in others:
        one.write_text("mine")
    assert left.exists()
    with local(tmp_path) as (_, api):
        assert not left.exists()
        assert sorted(park.iterdir()) == sorted(others)
        assert api.text(counting(3, 8)).startswith("3, 4")


def test_many_chats_in_a_pool_for_six_all_get_the_text_they_get_alone(tmp_path: Path, roomy: Api) -> None:
    """Some leave at random moments, parked or not."""
    many, random = (200 if SOAK else 12), Random(5)
    bodies = [counting(random.randrange(90), random.randrange(20, 50), ignore_eos=True) for _ in range(many)]
    alone: dict[str, str] = {}
    for body in bodies:
        alone.setdefault(json.dumps(body), roomy.text(body))
    flags = ("--kv-pool-tokens", "330", "--max-concurrent", "16", "--preempt-disk-gb", "1")
    with local(tmp_path, *flags) as (_, api):
        leavers = [n for n in range(many) if n % 10 == 5]
        streams = {n: Stream(api, body) for n, body in enumerate(bodies) if n not in leavers}
        for n in leavers:
            with api.vanishing({**bodies[n], "stream": True}):
                time.sleep(random.random() * 0.5)
        for n, stream in streams.items():
            assert stream.ended(300).text == alone[json.dumps(bodies[n])]
            assert stream.done
        check_nothing_left(api, tmp_path)
        assert metrics(api)["darkbloom_preempt_total"] > 0
