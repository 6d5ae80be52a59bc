import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import fleet
from coordinator.config import Timings
from coordinator.fleet import Hold, ProviderView
from coordinator.routing import Chosen, Cost, Reason, Refused, Request, judge, route
from tests.unit.coordinator.views import MODEL, advert, beat, slot, view

TIMINGS = Timings()
SMALL = Request(MODEL, prompt_tokens=10)


def chosen(*views: ProviderView, request: Request = SMALL, now_s: float = 0.0, seed: int = 0) -> str | Reason | None:
    match route(request, views, now_s, random.Random(seed), TIMINGS):
        case Chosen(provider_id):
            return provider_id
        case Refused() as refused:
            return refused.reason


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (view(models={"other": advert("other")}), Reason.MODEL_NOT_SERVED),
        (view(now_s=-45), Reason.LOST),
        (view(connected=False), Reason.DISCONNECTED),
        (view(now_s=-15), Reason.SUSPECT),
        (view("p1", slot(state="failed")), Reason.SLOT_FAILED),
        (view(draining=True), Reason.DRAINING),
        (view("p1", slot(state="unloading")), Reason.UNLOADING),
        (view("p0"), Reason.TRIED),
        (view("p1", slot(tokens_max=100, tokens_used=95), full_until_s={MODEL: 1.0}), Reason.NO_KV_ROOM),
        (view("p1", slot(running=3, waiting=1), full_until_s={MODEL: 1.0}), Reason.QUEUE_FULL),
    ],
)
def test_each_reason_is_given_for_its_cause(seen: ProviderView, reason: Reason) -> None:
    assert judge(replace(SMALL, tried=("p0",)), seen, 0.0, TIMINGS) is reason
    assert chosen(seen, request=replace(SMALL, tried=("p0",))) is reason


def test_every_reason_has_a_test() -> None:
    table = next(mark for mark in test_each_reason_is_given_for_its_cause.pytestmark if mark.name == "parametrize")
    assert {reason for _, reason in table.args[1]} == set(Reason)


def test_the_least_loaded_is_chosen() -> None:
    assert chosen(view("a", slot(running=2)), view("b", slot(running=1)), view("c", slot(running=1, waiting=1))) == "b"


def test_load_is_measured_per_slot() -> None:
    assert chosen(view("a", slot(running=1, max_concurrency=2)), view("b", slot(running=3, max_concurrency=16))) == "b"


def test_what_we_have_just_sent_counts_as_load() -> None:
    busy = fleet.held(view("a", slot()), "j.1", Hold(MODEL, 5))
    assert chosen(busy, view("b", slot())) == "b"
    elsewhere = fleet.held(view("a", slot()), "j.1", Hold("other", 5))
    assert {chosen(elsewhere, view("b", slot()), seed=seed) for seed in range(20)} == {"a", "b"}


def test_warm_goes_before_cold_and_room_before_both() -> None:
    cold, warm = view("cold"), view("warm", slot(running=3))
    assert chosen(cold, warm) == "warm"
    assert chosen(view("loading", slot(state="loading")), warm) == "warm"
    assert chosen(cold, view("warm", slot(running=4))) == "cold"


def test_a_busy_provider_is_chosen_when_there_is_no_other() -> None:
    busy = view("a", slot(running=4, waiting=9))
    assert chosen(busy) == "a"
    assert chosen(busy, view("b", slot(running=3))) == "b"
    assert chosen(fleet.full(busy, MODEL, until_s=5.0)) is Reason.QUEUE_FULL
    assert chosen(fleet.full(busy, MODEL, until_s=5.0), now_s=5.0) == "a"


def test_one_with_kv_room_goes_before_one_without() -> None:
    tight = view("tight", slot(tokens_max=100, tokens_used=50, tokens_queued=45))
    roomy = view("roomy", slot(tokens_max=1000, tokens_used=95, running=3))
    assert chosen(tight, roomy) == "roomy"
    assert chosen(tight) == "tight"


def test_tokens_that_we_have_just_sent_take_kv_room() -> None:
    held = fleet.held(view("a", slot(tokens_max=100)), "j.1", Hold(MODEL, 95))
    assert chosen(held, view("b", slot(running=3))) == "b"


def test_a_prompt_that_can_never_fit_is_left_for_the_provider_to_refuse() -> None:
    seen = view("a", slot(tokens_max=100, tokens_used=90), full_until_s={MODEL: 1.0})
    assert chosen(seen, request=Request(MODEL, prompt_tokens=101)) == "a"


def test_the_reason_nearest_to_a_yes_is_told() -> None:
    draining = view("b", draining=True)
    assert chosen(view("a", now_s=-50), draining, view("c", models={})) is Reason.DRAINING


def test_an_empty_fleet_refuses_without_a_reason() -> None:
    refused = route(SMALL, [], 0.0, random.Random(0), TIMINGS)
    assert isinstance(refused, Refused)
    assert refused.reason is None
    assert not refused.listed


def test_equals_share() -> None:
    fleet_of = [view(name, slot()) for name in "abcd"]
    rng = random.Random(1)
    picked = [route(SMALL, fleet_of, 0.0, rng, TIMINGS) for _ in range(400)]
    shares = [sum(one.provider_id == name for one in picked if isinstance(one, Chosen)) for name in "abcd"]
    assert all(60 < share < 140 for share in shares)


COUNTS = st.integers(0, 6)
STATES = st.sampled_from(["idle", "running", "loading", "unloading", "failed"])


@st.composite
def views(draw: Callable[[st.SearchStrategy[Any]], Any], name: str = "p") -> ProviderView:
    slots = ()
    if draw(st.booleans()):
        values = {key: draw(COUNTS) for key in ("running", "waiting", "max_concurrency")}
        tokens = {key: draw(st.integers(0, 60)) for key in ("tokens_used", "tokens_queued", "tokens_max")}
        slots = (slot(state=draw(STATES), **values, **tokens),)
    seen = view(name, *slots, now_s=-draw(st.sampled_from([0, 14, 15, 44, 45])))
    for number in range(draw(st.integers(0, 3))):
        seen = fleet.held(seen, f"{number}.1", Hold(draw(st.sampled_from([MODEL, "other"])), draw(COUNTS)))
    changes = {
        "connected": draw(st.booleans()),
        "draining": draw(st.booleans()),
        "models": {MODEL: advert()} if draw(st.booleans()) else {},
        "full_until_s": {MODEL: 1.0} if draw(st.booleans()) else {},
    }
    return replace(seen, **changes)


FLEETS = st.integers(0, 6).flatmap(lambda size: st.tuples(*(views(f"p{number}") for number in range(size))))
REQUESTS = st.builds(Request, st.sampled_from([MODEL, "none"]), st.integers(0, 80), st.sets(st.just("p0")))


@given(FLEETS, REQUESTS)
def test_every_provider_has_a_cost_or_a_reason(seen: tuple[ProviderView, ...], request: Request) -> None:
    decision = route(request, seen, 0.0, random.Random(0), TIMINGS)
    verdicts = {each.provider_id: judge(request, each, 0.0, TIMINGS) for each in seen}
    match decision:
        case Chosen(provider_id, cost):
            assert verdicts[provider_id] == cost
            assert cost == min(verdict for verdict in verdicts.values() if isinstance(verdict, Cost))
        case Refused(reasons):
            assert reasons == verdicts


@given(FLEETS, REQUESTS, st.integers(0, 99))
def test_the_decision_depends_on_nothing_but_its_arguments(
    seen: tuple[ProviderView, ...], request: Request, seed: int
) -> None:
    once = route(request, seen, 0.0, random.Random(seed), TIMINGS)
    assert once == route(request, seen, 0.0, random.Random(seed), TIMINGS)


@given(views(), REQUESTS, st.sampled_from(["running", "waiting", "tokens_used", "tokens_queued"]), st.integers(0, 9))
def test_more_load_never_lowers_the_cost(seen: ProviderView, request: Request, what: str, more: int) -> None:
    before = judge(request, seen, 0.0, TIMINGS)
    slots = tuple(each.model_copy(update={what: getattr(each, what) + more}) for each in seen.slots.values())
    heavier = replace(seen, slots=fleet.beaten(seen, beat(9, slots=slots), 0.0).slots)
    after = judge(request, heavier, 0.0, TIMINGS)
    assert isinstance(after, Reason) or (isinstance(before, Cost) and after >= before)


@given(views(), REQUESTS, st.integers(0, 60))
def test_one_more_request_of_ours_never_lowers_the_cost(seen: ProviderView, request: Request, tokens: int) -> None:
    before = judge(request, seen, 0.0, TIMINGS)
    after = judge(request, fleet.held(seen, "more.1", Hold(request.model, tokens)), 0.0, TIMINGS)
    assert isinstance(after, Reason) or (isinstance(before, Cost) and after >= before)
