"""Faults of network and processes, with real processes and the real engine: what can survive does, bit for bit.

Two coordinators share one Postgres; the provider dials both, each through a proxy that the test can break.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.store import postmaster
from coordinator.store.embedded import EmbeddedPostgres
from coordinator.store.schema import migrate
from provider.replay import MAX_FRAMES
from tests.integration.client import MODEL, Api, Stream, counting
from tests.integration.coordinator_harness import hurry, new_tokens, rows, scratch
from tests.integration.processes import Command, free_port, gone, health, running, until
from tests.integration.proxy import Proxy, proxied
from tests.soak import SOAK

RESUME_WITHIN_S = 45 if SOAK else 10
LONG = 150
FAR_BEYOND = 1100
"""Tokens, each a frame, for nothing is drafted here: more than a buffer holds, by far."""


@dataclass
class Coordinator:
    root: Path
    name: str
    database: str
    port: int = field(default_factory=free_port)
    command: Command | None = None
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        log = self.root / f"{self.name}.{time.monotonic_ns()}.log"
        serve = ("coordinator", "serve", "--port", str(self.port), "--database-url", self.database)
        data = ("--data-dir", str(self.root / self.name))
        told = {"DARKBLOOM_RESUME_WITHIN_S": str(RESUME_WITHIN_S)}
        self.command = self.stack.enter_context(running(log, *serve, *data, **told))

    def until_ready(self) -> None:
        until(lambda: health(self.url) == "ok", what="the coordinator")

    def kill(self) -> None:
        assert self.command is not None
        self.command.process.kill()
        self.command.process.wait()


@dataclass
class World:
    root: Path
    directory: Path
    postgres: EmbeddedPostgres
    database: str
    key: str
    token: str
    first: Coordinator
    second: Coordinator
    proxies: tuple[Proxy, Proxy]
    stack: contextlib.ExitStack
    real: Command | None = None
    expected: dict[str, str] = field(default_factory=dict)

    @property
    def api(self) -> Api:
        return Api(self.first.url, self.key)

    @property
    def proxy(self) -> Proxy:
        return self.proxies[0]

    def start_provider(self) -> None:
        dialled = [word for one in self.proxies for word in ("--coordinator", f"ws://127.0.0.1:{one.port}/ws/provider")]
        told = ("--token", self.token, "--model", MODEL, "--name", "real", "--mtp-mode", "off")
        log, data = self.root / f"provider.{time.monotonic_ns()}.log", ("--data-dir", str(self.root / "real"))
        self.real = self.stack.enter_context(running(log, "provider", "start", *dialled, *told, *data))

    def shown(self, api: Api | None = None) -> dict[str, Any]:
        found: dict[str, Any] = (api or self.api).get("/v1/fleet/real").json()
        return found

    def until_alive(self, api: Api | None = None) -> None:
        def alive() -> bool:
            assert self.real is not None
            assert self.real.process.poll() is None, self.real.output
            shown = self.shown(api)
            return shown.get("state") == "alive" and bool(shown["slots"])

        until(alive, what="the provider")

    def until_nothing_is_held(self) -> None:
        """No lease is left at the coordinator, and no sequence at the provider."""

        def free() -> bool:
            shown = self.shown()
            (slot,) = shown["slots"] or [{}]
            busy = [slot.get(key) for key in ("running", "waiting", "parked")]
            return shown["requests_held"] == 0 and busy == [0, 0, 0]

        until(free, 30, what="an idle provider and no lease")

    def break_the_line(self) -> None:
        """And wait for another connection."""
        generation = self.shown()["generation"]
        self.proxy.reset()
        until(lambda: bool(self.shown()["generation"] > generation), what="another connection")

    def undisturbed(self, body: dict[str, Any]) -> str:
        """What the chat says when nothing happens."""
        key = repr(body)
        if key not in self.expected:
            self.expected[key] = self.api.text(body)
        return self.expected[key]

    def says_what_it_would_undisturbed(self, body: dict[str, Any], text: str) -> bool:
        """A greedy chat that broke off, as far as it came or as its first tokens go."""
        expected = self.undisturbed({**body, "max_tokens": min(body["max_tokens"], LONG)})
        together = min(len(text), len(expected))
        return together > 0 and text[:together] == expected[:together]

    def billed(self) -> list[tuple[Any, ...]]:
        query = "select job_id, outcome, code, completion_tokens from usage order by finished_at"
        return rows(self.database, query)

    def _bills_are_written(self) -> bool:
        """They follow their answers by less than this."""
        before = self.billed()
        time.sleep(0.5)
        return before == self.billed()

    @contextlib.contextmanager
    def billing(self, jobs: int) -> "Iterator[list[tuple[Any, ...]]]":
        """So many jobs in the block, each billed once: outcome, code and tokens of each."""
        until(self._bills_are_written, 30, "the bills of before")
        before = {row[0] for row in self.billed()}
        found: list[tuple[Any, ...]] = []
        yield found
        until(lambda: len(self.billed()) >= len(before) + jobs, 30, "the bills")
        time.sleep(0.3)
        fresh = [row for row in self.billed() if row[0] not in before]
        assert len({row[0] for row in fresh}) == len(fresh) == jobs
        found += [row[1:] for row in fresh]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("faults")
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch())
        postgres = EmbeddedPostgres(directory)
        database = postgres.acquire()
        stack.callback(postgres.release)
        migrate(database)
        hurry(database)
        key, token = asyncio.run(new_tokens(database))
        both = [Coordinator(root, name, database) for name in ("first", "second")]
        for one in both:
            stack.callback(one.stack.close)
            one.start()
        for one in both:
            one.until_ready()
        proxies = (stack.enter_context(proxied(both[0].port)), stack.enter_context(proxied(both[1].port)))
        made = World(root, directory, postgres, database, key, token, both[0], both[1], proxies, stack)
        made.start_provider()
        made.until_alive()
        yield made


def test_streams_survive_resets_bit_for_bit_and_are_billed_once(world: World) -> None:
    bodies = [counting(3, LONG), counting(5, LONG, temperature=0.8, seed=11, ignore_eos=True)]
    expected = [world.undisturbed(body) for body in bodies]
    with world.billing(2) as billed:
        streams = [Stream(world.api, body).begun() for body in bodies]
        world.break_the_line()
        world.proxy.stall()
        time.sleep(0.5)
        world.proxy.flow()
        world.break_the_line()
        ended = [stream.ended() for stream in streams]
        assert [stream.text for stream in ended] == expected
        assert [(stream.done, stream.finish_reason) for stream in ended] == [(True, "length")] * 2
        world.until_nothing_is_held()
    assert sorted(billed) == [("completed", None, LONG)] * 2


def test_an_answer_that_does_not_stream_survives_too(world: World) -> None:
    body = counting(7, LONG)
    expected = world.undisturbed(body)
    with world.billing(1) as billed, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(world.api.text, body)
        until(lambda: world.shown()["slots"][0]["running"] == 1 or asking.done(), what="the running request")
        world.break_the_line()
        assert asking.result(60) == expected
    assert billed == [("completed", None, LONG)]


@pytest.mark.skipif(not SOAK, reason="takes minutes on a busy machine: DARKBLOOM_SOAK=1")
def test_a_partition_outlasts_the_buffer_and_the_chat_is_held_rather_than_decoded_on(world: World) -> None:
    body = counting(2, FAR_BEYOND, ignore_eos=True)
    expected = world.undisturbed(body)
    with world.billing(2) as billed:
        stream = Stream(world.api, body).begun()
        world.proxy.stall()
        seconds = Api(world.second.url, world.key)
        until(lambda: world.shown(seconds)["slots"][0]["parked"] == 1, 60, "the held chat")
        said = len(stream.events)
        assert said < FAR_BEYOND
        assert seconds.text(counting(3, 8)).startswith("3, 4"), "the other coordinator's work goes on"
        world.proxy.shut()
        world.proxy.reset()
        world.proxy.flow()
        time.sleep(1)
        assert stream.running
        world.proxy.open()
        assert stream.ended(120).text == expected
        assert (stream.done, stream.finish_reason) == (True, "length")
        assert ": preempted" in stream.lines
        assert ": resumed" in stream.lines
        world.until_nothing_is_held()
    assert len(stream.events) > MAX_FRAMES
    assert ("completed", None, FAR_BEYOND) in billed


@pytest.mark.skipif(not SOAK, reason="takes 30 s of waiting: DARKBLOOM_SOAK=1")
def test_a_partition_of_thirty_seconds_is_noticed_by_its_pings_and_survived(world: World) -> None:
    """Nobody is told of it: both sides keep their half of a line that carries nothing."""
    body = counting(2, FAR_BEYOND, ignore_eos=True)
    expected, generation = world.undisturbed(body), world.shown()["generation"]
    with world.billing(1) as billed:
        stream = Stream(world.api, body).begun()
        world.proxy.stall()
        time.sleep(30)
        assert stream.running
        world.proxy.flow()
        assert stream.ended(120).text == expected
        assert (stream.done, stream.finish_reason) == (True, "length")
    assert world.shown()["generation"] >= generation
    assert billed == [("completed", None, FAR_BEYOND)]


def test_what_cannot_be_resumed_in_time_ends_with_a_typed_error_and_frees_everything(world: World) -> None:
    body = counting(2, FAR_BEYOND, ignore_eos=True)
    with world.billing(1) as billed:
        stream = Stream(world.api, body).begun()
        world.proxy.shut()
        world.proxy.reset()
        try:
            ended = stream.ended(RESUME_WITHIN_S + 20)
            assert ended.error is not None
            assert (ended.status, ended.error["code"], ended.done) == (200, "provider_lost", True)
        finally:
            world.proxy.open()
        world.until_alive()
        world.until_nothing_is_held()
    ((outcome, code, tokens),) = billed
    assert (outcome, code) == ("failed", "provider_lost")
    assert 0 < tokens <= FAR_BEYOND
    assert world.says_what_it_would_undisturbed(body, ended.text)


def test_a_client_that_reads_late_gets_all_of_it_and_holds_up_nobody(world: World) -> None:
    body = counting(3, LONG, stream=True)
    expected = world.undisturbed(counting(3, LONG))
    with world.api.vanishing(body) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert world.api.text(counting(5, 20)) == world.undisturbed(counting(5, 20))
        time.sleep(1)
        raw = b""
        while b"data: [DONE]" not in raw and (data := connection.recv(4096)):
            raw += data
    assert spoken(raw) == expected


def test_when_postgres_stops_streams_go_on_and_every_job_is_billed_once_it_is_back(world: World) -> None:
    body = counting(3, LONG)
    expected = world.undisturbed(body)
    before = len(world.billed())
    stream = Stream(world.api, body).begun()
    server = postmaster.running((world.directory / "postgres").resolve())
    assert server is not None
    os.kill(server.pid, signal.SIGQUIT)
    until(lambda: postmaster.running((world.directory / "postgres").resolve()) is None, what="the end of Postgres")
    assert stream.ended().text == expected
    assert world.api.text(counting(5, 20)) == world.undisturbed(counting(5, 20))
    assert world.postgres.revive()
    until(lambda: len(world.billed()) >= before + 2, 30, "the bills")
    time.sleep(0.5)
    assert len({row[0] for row in world.billed()}) == len(world.billed())


def test_a_killed_coordinator_is_replaced_by_the_one_standing_by_and_its_requests_are_gone(world: World) -> None:
    body = counting(2, FAR_BEYOND, ignore_eos=True)
    standing_by = Api(world.second.url, world.key)
    world.until_alive(standing_by)
    expected = [world.undisturbed(counting(3, LONG)), world.undisturbed(counting(5, 20))]
    with world.billing(4) as billed:
        lost, kept = Stream(world.api, body).begun(), Stream(standing_by, counting(3, LONG)).begun()
        world.first.kill()
        assert not lost.ended(20).done
        assert [kept.ended().text, standing_by.text(counting(5, 20))] == expected
        world.first.start()
        world.first.until_ready()
        world.until_alive()
        world.until_nothing_is_held()
        assert world.api.text(counting(5, 20)) == expected[1]
    outcomes = sorted(((outcome, code) for outcome, code, _ in billed), key=str)
    assert outcomes == [("completed", None)] * 3 + [("failed", "coordinator_lost")]


def test_a_killed_provider_that_comes_back_has_forgotten_its_streams_and_serves_again(world: World) -> None:
    assert world.real is not None
    body = counting(2, FAR_BEYOND, ignore_eos=True)
    with world.billing(1) as billed:
        stream = Stream(world.api, body).begun()
        left = world.real.descendants()
        world.real.process.kill()
        world.real.process.wait()
        until(lambda: gone(left), 20, "the end of its workers")
        world.start_provider()
        ended = stream.ended(60)
        assert ended.error is not None
        assert (ended.status, ended.error["code"], ended.done) == (200, "provider_lost", True)
        world.until_alive()
        world.until_nothing_is_held()
    ((outcome, code, tokens),) = billed
    assert (outcome, code) == ("failed", "provider_lost")
    assert 0 < tokens <= FAR_BEYOND
    assert world.says_what_it_would_undisturbed(body, ended.text)
    assert world.api.text(counting(5, 20)) == world.undisturbed(counting(5, 20))


def spoken(raw: bytes) -> str:
    """The text of a raw event stream in chunked coding."""
    body = raw.split(b"\r\n\r\n", 1)[1]
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
