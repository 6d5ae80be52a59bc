"""More requests than a small fleet can run at once, on real processes and a real model: everybody is served in turn."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest

from tests.integration.client import Api, counting
from tests.integration.processes import free_port, gone, run, until
from tests.integration.test_fleet import Fleet

ENDLESS = 4000
PATIENCE_S = 240.0


class Burst:
    """Requests sent at once, each by a thread of its own. `finished`: whose answers have come, in that order."""

    def __init__(self) -> None:
        self.finished: list[str] = []
        self.answers: list[tuple[int, str]] = []
        self._threads: list[threading.Thread] = []
        self._clients: list[openai.OpenAI] = []

    def send(self, name: str, api: Api, count: int, body: dict[str, Any]) -> "Burst":
        client = api.sdk().with_options(timeout=PATIENCE_S)
        self._clients.append(client)
        for _ in range(count):
            thread = threading.Thread(target=self._ask, args=(name, client, body), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def _ask(self, name: str, client: openai.OpenAI, body: dict[str, Any]) -> None:
        try:
            answer = client.chat.completions.create(**body)
        except openai.APIStatusError as error:
            self.answers.append((error.status_code, str(error)))
        else:
            self.answers.append((200, answer.choices[0].message.content or ""))
        self.finished.append(name)

    def ended(self) -> list[tuple[int, str]]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "an answer has not come"
        for client in self._clients:
            client.close()
        return self.answers


class SmallFleet(Fleet):
    """Of providers that run two chats at a time."""

    def arguments(self, name: str) -> tuple[str, ...]:
        return (*super().arguments(name), "--max-concurrent", "2")

    @property
    def waiting(self) -> int:
        return sum(one["requests"] for one in self.api.get("/v1/fleet").json()["waiting"])

    @property
    def held(self) -> int:
        return sum(one["requests_held"] for one in self.shown().values())

    @contextlib.contextmanager
    def full(self, chats: int = 4) -> Iterator[None]:
        """Both providers run what would go on for long, and are left by it at the end. Beyond four, chats wait to take
        the places of those that have ended after all."""
        with contextlib.ExitStack() as stack:
            for _ in range(chats):
                stack.enter_context(self.api.vanishing(counting(1, ENDLESS, stream=True)))
            until(lambda: self.held == 4, what="a full fleet")
            yield

    def metric(self, name: str) -> float:
        """0 for one that has not been counted yet."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.api.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallFleet]:
    with contextlib.ExitStack() as stack:
        fleet = SmallFleet(tmp_path_factory.mktemp("fleet"), free_port(), stack)
        fleet.start_coordinator()
        fleet.key, fleet.token = fleet.create_token("api"), fleet.create_token("provider")
        for name in ("one", "two"):
            stack.enter_context(fleet.provider(name))
        fleet.until_alive("one", "two")
        fleet.until_idle()
        yield fleet


def test_a_burst_of_forty_over_two_small_providers_is_served_whole(fleet: SmallFleet) -> None:
    body = counting(3, 8)
    alone = fleet.api.text(body)
    burst = Burst().send("all", fleet.api, 40, body)
    until(lambda: fleet.waiting > 0, what="a request that waits")
    assert fleet.held <= 4
    assert burst.ended() == [(200, alone)] * 40
    until(lambda: fleet.held == 0, what="the end of every hold")
    assert fleet.waiting == 0
    assert fleet.metric('darkbloom_wait_seconds_count{outcome="served"}') >= 30
    assert fleet.metric('darkbloom_route_refusals_total{reason="queue_full"}') == 0
    assert 'darkbloom_requests_waiting{model="' not in fleet.api.get("/metrics").text


def test_two_keys_share_what_there_is_however_much_one_has_asked_for(fleet: SmallFleet) -> None:
    other = Api(fleet.url, fleet.create_token("api"))
    fleet.until_idle()
    with fleet.full(chats=8):
        burst = Burst().send("greedy", fleet.api, 30, counting(3, 8))
        until(lambda: fleet.waiting >= 30, what="a long line")
        burst.send("modest", other, 6, counting(3, 8))
        until(lambda: fleet.waiting >= 36, what="a longer one")
    assert [status for status, _ in burst.ended()] == [200] * 36
    last = len(burst.finished) - 1 - burst.finished[::-1].index("modest")
    assert burst.finished[last + 1 :].count("greedy") >= 12


def test_a_client_that_goes_away_while_it_waits_is_forgotten(fleet: SmallFleet) -> None:
    fleet.until_idle()
    with fleet.full():
        with fleet.api.vanishing(counting(1, ENDLESS, stream=True)):
            until(lambda: fleet.waiting == 1, what="a request that waits")
        until(lambda: fleet.waiting == 0, what="its end")
        assert fleet.held == 4
    until(lambda: fleet.held == 0 and fleet.at_work("one", "two") == 0, what="an idle fleet")


def test_a_provider_that_drains_amid_a_burst_loses_nothing_and_ends(fleet: SmallFleet) -> None:
    body = counting(3, 40)
    alone = fleet.api.text(body)
    log, data = fleet.root / "log", fleet.provider_data("leaving")
    with fleet.provider("leaving") as leaving:
        fleet.until_alive("leaving")
        fleet.until_idle()
        burst = Burst().send("all", fleet.api, 18, body)
        until(lambda: fleet.shown()["leaving"]["requests_held"] > 0, what="a request there")
        drained = run(log, "provider", "drain", *data)
        assert (drained.returncode, "finished what it had" in drained.stdout) == (0, True), drained.stderr
        assert leaving.process.wait(30) == 0
        assert burst.ended() == [(200, alone)] * 18
    assert fleet.shown()["leaving"]["state"] == "disconnected"
    assert "No provider" in run(log, "provider", "drain", *data).stdout


def test_an_operator_drains_a_provider_from_the_coordinator_and_takes_it_back(fleet: SmallFleet) -> None:
    admin = Api(fleet.url, fleet.create_token("admin"))
    fleet.until_idle()
    path = f"/v1/admin/providers/{fleet.shown()['two']['id']}/drain"
    assert fleet.api.post({}, path).status_code == 403
    answer = admin.post(b"", f"{path}?wait=true")
    assert (answer.status_code, answer.json()["status"], answer.json()["requests"]) == (200, "draining", 0)
    shown = fleet.shown()["two"]
    assert (shown["state"], shown["drain_ordered"]) == ("draining", True)
    assert (shown["models"][0]["routable"], shown["models"][0]["reason"]) == (False, "provider_draining")
    before = shown["stats"]["requests"]
    assert [status for status, _ in Burst().send("all", fleet.api, 6, counting(3, 4)).ended()] == [200] * 6
    answer = admin.post({"drain": False}, "/v1/admin/providers/two/drain")
    assert (answer.json()["status"], fleet.shown()["two"]["state"]) == ("active", "alive")
    assert fleet.shown()["two"]["stats"]["requests"] == before
    assert admin.post({"drains": True}, path).status_code == 400
    assert admin.post({}, "/v1/admin/providers/nobody/drain").json()["error"]["code"] == "provider_not_found"
    with fleet.full():  # the one that was drained included
        pass
    until(lambda: fleet.held == 0, what="an idle fleet")


def test_a_draining_provider_says_so_and_ends_at_once_when_it_is_told_twice_to_stop(fleet: SmallFleet) -> None:
    """The last of these tests: one of the two is gone afterwards."""
    log, data = fleet.root / "log", fleet.provider_data("two")
    with fleet.full():
        assert "is draining" in run(log, "provider", "drain", "--no-wait", *data).stdout
        until(lambda: fleet.shown()["two"]["state"] == "draining", what="the word of it")
        told = json.loads(run(log, "provider", "status", "--json", *data).stdout)
        assert told["draining"]
        provider = psutil.Process(told["pid"])
        for _ in range(2):
            provider.terminate()
            time.sleep(0.5)  # for the first to be taken as one
        until(lambda: gone([provider]), what="its end")
    assert fleet.shown()["one"]["state"] == "alive"
