"""One model name over a simulated Mac, a simulated GPU and a real provider that computes on this machine's CPU."""

import contextlib
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.routing import TIE_MS, TIE_SHARE
from provider.memory_findings import judge_running
from provider.running import read_running
from tests.integration.client import MODEL, Api, counting
from tests.integration.processes import free_port, run, running, until
from tests.integration.test_fleet import Fleet

SIMULATED = {"sim-0": "unified", "sim-1": "discrete"}
REAL = "real"
CHOSEN = re.compile(r'^darkbloom_route_chosen_total\{provider="([^"]+)"\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        fleet = Fleet(tmp_path_factory.mktemp("mixed"), free_port(), stack)
        fleet.start_coordinator()
        fleet.key, fleet.token = fleet.create_token("api"), fleet.create_token("provider")
        url = f"ws://127.0.0.1:{fleet.port}/ws/provider"
        stack.enter_context(running(fleet.root / "real.log", *fleet.arguments(REAL), "--exact", "on"))
        machines = ("--machine", "m3-max", "--machine", "h100")
        simulated = ("fleet", "simulate", "--providers", "2", *machines, "--coordinator", url, "--token", fleet.token)
        stack.enter_context(running(fleet.root / "sim.log", *simulated))
        fleet.until_alive(REAL, *SIMULATED)
        until(lambda: all(one["slots"] for one in fleet.shown().values()), what="the model at all three")
        yield fleet


def ask_route(fleet: Fleet, **more: Any) -> dict[str, Any]:
    answer = fleet.api.post({"model": MODEL, "prompt_tokens": 100, "max_tokens": 50, **more}, "/v1/route")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def chosen(fleet: Fleet) -> dict[str, float]:
    """How many decisions there have been for each, by name."""
    names = {one["id"]: name for name, one in fleet.shown().items()}
    found = CHOSEN.findall(fleet.api.get("/metrics").text)
    return dict.fromkeys(names.values(), 0.0) | {names[id]: float(times) for id, times in found}


def measured(fleet: Fleet) -> bool:
    return all(one["slots"][0]["decode_tps"] and one["slots"][0]["prefill_tps"] for one in fleet.shown().values())


def test_each_is_tried_until_it_is_measured_and_then_traffic_goes_where_the_cost_says(fleet: Fleet) -> None:
    kinds = {name: one["hardware"]["memory_kind"] for name, one in fleet.shown().items()}
    assert {name: kinds[name] for name in SIMULATED} == SIMULATED

    def measure() -> bool:
        """Whoever has no rate yet counts as the fastest; heartbeats bring the rates. Another conversation each time:
        one goes back to where it has been."""
        assert fleet.api.post(counting(next(firsts), 8)).status_code == 200
        return measured(fleet)

    firsts = itertools.count(1)
    until(measure, 120, "a rate of each")
    fleet.until_idle()
    costs = {one["name"]: one["cost_ms"] for one in ask_route(fleet)["candidates"]}
    least = min(costs.values())
    cheapest = {name for name, cost in costs.items() if cost <= least + max(TIE_MS, TIE_SHARE * least)}
    assert cheapest <= set(SIMULATED), costs
    before = chosen(fleet)
    for _ in range(12):
        assert fleet.api.post(counting(next(firsts), 8)).status_code == 200
    after = chosen(fleet)
    assert sum(after.values()) >= sum(before.values()) + 12
    assert after[REAL] == before[REAL], "the CPU is the slowest by far"


def test_exactness_is_found_where_it_is_on(fleet: Fleet) -> None:
    answer = ask_route(fleet, exact=True)
    found = {one["name"]: one for one in answer["candidates"]}
    assert answer["decision"]["provider"] == found[REAL]["provider"]
    assert {name: found[name]["reason"] for name in SIMULATED} == dict.fromkeys(SIMULATED, "exact_not_on")
    assert found["sim-0"]["detail"] == "exact concurrency is off there"
    assert ask_route(fleet, vision=True)["refused"]["reason"] == "vision_not_served"


def test_a_provider_says_why_it_gets_no_traffic(fleet: Fleet, tmp_path: Path) -> None:
    data = fleet.root / REAL

    def told() -> dict[str, Any]:
        (link,) = fleet.told(REAL)["coordinators"]
        return dict(link["routability"].get(MODEL, {}))

    until(lambda: told().get("routable") is True, what="the word of the coordinator")
    admin = Api(fleet.url, fleet.create_token("admin"))
    try:
        assert admin.post({}, f"/v1/admin/providers/{REAL}/drain").status_code == 200
        until(lambda: told().get("reason") == "provider_draining", what="its new word")
        shown = run(tmp_path / "log", "provider", "status", *fleet.provider_data(REAL))
        assert f"{MODEL}  not routable: provider_draining an operator has ordered it" in shown.stdout
        found = [one for one in judge_running(read_running(data, time.time()), 0.0) if one.name == "routable"]
        assert [one.message.split(" sends ")[1] for one in found] == [
            f"no requests for {MODEL}: provider_draining (an operator has ordered it)."
        ]
    finally:
        admin.post({"drain": False}, f"/v1/admin/providers/{REAL}/drain")
    until(lambda: told().get("routable") is True, what="its word after that")
