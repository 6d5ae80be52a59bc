import logging
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from coordinator.costs import Terms
from coordinator.decisions import KEPT, REFUSALS_PER_S, SAMPLED_PER_S, Decisions
from coordinator.reasons import Reason
from coordinator.routing import Chosen, Refused, Request

TERMS = Terms(0.0, 12.5, 0.0, 3.0, 100.0, 0.0, 0.0, 0.0, -1.5)
REQUEST = Request("m", 7, name="req-1")


def chosen(provider_id: str = "p1") -> Chosen:
    return Chosen(provider_id, 114.0, TERMS, candidates=3)


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.registry = CollectorRegistry()
        self.listed = ["p1", "p2"]
        self.gated: Mapping[tuple[str, Reason], int] = {("m", Reason.QUEUE_FULL): 4}
        self.decisions = Decisions(self.registry, lambda: self.now_s, lambda: self.gated, lambda: self.listed)

    @property
    def page(self) -> str:
        return generate_latest(self.registry).decode()

    def value(self, sample: str) -> float | None:
        lines = [line for line in self.page.splitlines() if line.startswith(f"{sample} ")]
        return float(lines[0].split()[-1]) if lines else None


@pytest.fixture
def world() -> World:
    return World()


def test_all_are_counted_and_a_sample_is_kept(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coordinator"):
        for _ in range(SAMPLED_PER_S + 5):
            world.decisions.note(REQUEST, chosen(), 1e-4)
    assert world.value('darkbloom_route_decisions_total{outcome="chosen"}') == SAMPLED_PER_S + 5
    assert world.value("darkbloom_route_seconds_count") == SAMPLED_PER_S + 5
    assert world.value('darkbloom_route_term_milliseconds_count{term="prefill_backlog"}') == SAMPLED_PER_S
    assert world.value('darkbloom_route_term_milliseconds_sum{term="affinity"}') == -1.5 * SAMPLED_PER_S
    assert len(world.decisions.of("p1")) == len(caplog.records) == SAMPLED_PER_S
    world.now_s = 1.0
    world.decisions.note(REQUEST, chosen(), 1e-4)
    assert len(world.decisions.of("p1")) == SAMPLED_PER_S + 1


def test_a_line_in_the_log_says_what_the_decision_was_made_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coordinator"):
        world.decisions.note(REQUEST, chosen(), 1e-4)
        world.decisions.note(REQUEST, Refused({Reason.QUEUE_FULL: 2, Reason.DRAINING: 1}), 1e-4)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "route request_id=req-1 model=m prompt_tokens=7 answer_tokens=256 provider=p1 cost_ms=114.000"
    )
    assert "prefill_backlog_ms=12.500" in first
    assert "affinity_ms=-1.500" in first
    assert "residency" not in first
    assert second.endswith("queue_full=2 provider_draining=1")


def test_refusals_are_counted_and_kept_more_rarely(world: World) -> None:
    for _ in range(REFUSALS_PER_S + 5):
        world.decisions.note(REQUEST, Refused({Reason.QUEUE_FULL: 2}), 1e-4)
    world.decisions.note(REQUEST, chosen(), 1e-4)
    assert world.value('darkbloom_route_decisions_total{outcome="refused"}') == REFUSALS_PER_S + 5
    (kept,) = world.decisions.of("p1")
    assert kept.shown(2.5) == {
        "age_s": 2.5,
        "model": "m",
        "prompt_tokens": 7,
        "request": "req-1",
        "provider": "p1",
        "cost_ms": 114.0,
        "candidates": 3,
        "terms": TERMS._asdict(),
    }


def test_what_is_kept_is_bounded(world: World) -> None:
    for second in range(KEPT):
        world.now_s = float(second)
        world.decisions.note(REQUEST, chosen("p1"), 1e-4)
        world.decisions.note(REQUEST, chosen("p2"), 1e-4)
    assert len(world.decisions.of("p1")) == len(world.decisions.of("p2")) == KEPT // 2
    ages = [one.shown(world.now_s)["age_s"] for one in world.decisions.of("p2")]
    assert ages == sorted(ages)


def test_a_scrape_tells_who_is_chosen_and_what_keeps_the_others(world: World) -> None:
    world.decisions.note(REQUEST, chosen("p1"), 1e-4)
    world.decisions.note(REQUEST, chosen("p2"), 1e-4)
    assert world.value('darkbloom_route_chosen_total{provider="p2"}') == 1.0
    assert world.value('darkbloom_route_gated{model="m",reason="queue_full"}') == 4.0
    world.listed = ["p1"]
    assert world.value('darkbloom_route_chosen_total{provider="p2"}') is None
    assert world.value('darkbloom_route_chosen_total{provider="p1"}') == 1.0
