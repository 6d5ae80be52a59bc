import random
from dataclasses import replace

import pytest

from coordinator import fleet
from coordinator.breaker import Breaker
from coordinator.config import Timings
from coordinator.cooldown import Capacity, Cooldown
from coordinator.fleet import Hold, ProviderView
from coordinator.mirror import TooLong
from coordinator.routing import Beyond, Chosen, Reason, Refused, Request, explain, route
from tests.unit.coordinator.views import GIB, MODEL, TABLES, advert, listed, memory, slot, view

TIMINGS = Timings()
SMALL = Request(MODEL, prompt_tokens=10)


COOLING = Cooldown(3, refused_s=-1.0, until_s=4.0, capacity=Capacity(True, False, 0, 4, "unknown"))


def chosen(*views: ProviderView, request: Request = SMALL, now_s: float = 0.0, seed: int = 0) -> str | Reason | None:
    match route(request, listed(*views), now_s, random.Random(seed), TIMINGS, TABLES):
        case Chosen(provider_id):
            return provider_id
        case Refused() as refused:
            return refused.reason


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (view(models={"other": advert("other")}), Reason.MODEL_NOT_SERVED),
        (view(models={MODEL: advert(vision=True)}), Reason.EXACT_NOT_ON),
        (view(models={MODEL: advert(exact="on")}), Reason.VISION_NOT_SERVED),
        (view(now_s=-45), Reason.LOST),
        (view(connected=False), Reason.DISCONNECTED),
        (view(now_s=-15), Reason.SUSPECT),
        (view(models={MODEL: advert(context_length=60)}), Reason.CONTEXT_EXCEEDED),
        (view("p1", slot(tokens_max=59)), Reason.PROMPT_TOO_LONG),
        (view("p1", slot(state="failed")), Reason.SLOT_FAILED),
        (view("p1", slot(kv_bytes_per_token=1024)), Reason.NO_KV_BUDGET),
        (view(memory=memory(free_for_load_bytes=GIB)), Reason.MEMORY_CAP),
        (view("p1", slot(state="unloading"), memory=memory(free_for_load_bytes=GIB)), Reason.MEMORY_CAP),
        (view(draining=True), Reason.DRAINING),
        (view(cooldowns={MODEL: COOLING}), Reason.COOLING),
        (view(breakers={MODEL: Breaker(5, failed_s=-1.0, until_s=4.0)}), Reason.BREAKER_OPEN),
        (view("p0"), Reason.TRIED),
        (view("p1", slot(tokens_max=100, tokens_used=95, tokens_queued=5)), Reason.NO_KV_ROOM),
        (view("p1", slot(running=4, waiting=1)), Reason.QUEUE_FULL),
        (view("p1", slot(running=3), full_until_s={MODEL: 1.0}), Reason.QUEUE_FULL),
    ],
)
def test_each_reason_is_given_for_its_cause(seen: ProviderView, reason: Reason) -> None:
    asks = {"exact": reason is Reason.EXACT_NOT_ON, "vision": reason is Reason.VISION_NOT_SERVED}
    request = replace(SMALL, tried=("p0",), least_tokens=60, **asks)
    (verdict,) = explain(request, listed(seen), 0.0, TIMINGS, TABLES).values()
    assert (verdict.reason, verdict.cost_ms) == (reason, None)
    assert chosen(seen, request=request) is reason


def test_every_reason_has_a_test() -> None:
    table = next(mark for mark in test_each_reason_is_given_for_its_cause.pytestmark if mark.name == "parametrize")
    assert {reason for _, reason in table.args[1]} == set(Reason)


def test_the_least_loaded_is_chosen() -> None:
    assert chosen(view("a", slot(running=2)), view("b", slot(running=1)), view("c", slot(running=1, waiting=1))) == "b"


def test_load_is_weighed_by_how_fast_it_is_worked_off() -> None:
    slow, fast = view("slow", slot(running=1, decode_tps=20)), view("fast", slot(running=3, decode_tps=160))
    assert chosen(slow, fast) == "fast"
    assert chosen(slow, view("fast", slot(running=3, waiting=1, decode_tps=40))) == "slow"


def test_what_we_have_just_sent_counts_as_load() -> None:
    busy = fleet.held(view("a", slot()), "j.1", Hold(MODEL, 5))
    assert chosen(busy, view("b", slot())) == "b"
    elsewhere = fleet.held(view("a", slot()), "j.1", Hold("other", 5))
    assert {chosen(elsewhere, view("b", slot()), seed=seed) for seed in range(20)} == {"a", "b"}


def test_warm_goes_before_cold_until_the_wait_is_longer_than_the_load() -> None:
    cold, warm = view("cold"), view("warm", slot(running=1))
    assert chosen(cold, warm) == "warm"
    assert chosen(view("loading", slot(state="loading")), warm) == "warm"
    assert chosen(cold, view("warm", slot(running=4))) == "cold"


def test_a_fast_disk_is_worth_waiting_for() -> None:
    large = {MODEL: advert(size_bytes=3 * GIB)}
    slow, fast = view("slow", models=large), view("fast", models=large, load_bytes_per_s=5e9)
    assert chosen(slow, fast) == "fast"
    assert chosen(slow, view("slower", models=large, load_bytes_per_s=1e8)) == "slow"


def test_a_load_that_is_nearly_done_goes_before_one_that_has_just_begun() -> None:
    begun = view("begun", slot(state="loading"), loading_since_s={MODEL: -1.0})
    late = view("late", slot(state="loading"), loading_since_s={MODEL: -9.0})
    assert chosen(begun, late) == "late"


def test_nobody_loads_a_model_for_a_little_less() -> None:
    """Both at one rate: a load of 11.1 s against 11.5 s of another chat beside it."""
    warm = view("warm", slot(running=1, decode_tps=256 / 11.5))
    cold = view("cold")
    costs = {one.provider_id: one.cost_ms for one in explain(SMALL, listed(warm, cold), 0.0, TIMINGS, TABLES).values()}
    assert costs["cold"] is not None
    assert costs["warm"] is not None
    assert costs["cold"] < costs["warm"] < 1.1 * costs["cold"]
    assert {chosen(warm, cold, seed=seed) for seed in range(8)} == {"warm"}


def test_a_hot_machine_is_spared() -> None:
    assert chosen(view("hot", slot(), thermal="critical"), view("cool", slot())) == "cool"
    assert chosen(view("hot", slot(), thermal="serious"), view("cool", slot(running=2))) == "hot"


def test_whoever_was_never_measured_is_tried_as_if_it_were_the_fastest() -> None:
    fast, slow, new = view("fast", slot(decode_tps=80)), view("slow", slot(decode_tps=40)), view("new", slot())
    assert chosen(slow, new) == "new"
    assert {chosen(slow, fast, new, seed=seed) for seed in range(20)} == {"fast", "new"}


def test_a_conversation_goes_back_to_whoever_knows_it_unless_that_takes_longer() -> None:
    back = Request(MODEL, prompt_tokens=2000, served_last="b")
    fleet_of = [view("a", slot()), view("b", slot()), view("c", slot())]
    assert {chosen(*fleet_of, request=back, seed=seed) for seed in range(8)} == {"b"}
    assert chosen(view("a", slot()), view("b", slot(running=1)), request=back) == "a"
    assert chosen(*fleet_of, request=replace(back, served_last="gone")) in ("a", "b", "c")


def test_exactness_and_pictures_are_asked_of_those_who_have_them() -> None:
    exact = view("exact", slot(running=3), models={MODEL: advert(exact="on")})
    seeing = view("seeing", slot(running=3), models={MODEL: advert(vision=True)})
    unable = view("unable", slot(), models={MODEL: advert(exact="unavailable")})
    assert chosen(exact, seeing, unable) == "unable"
    assert chosen(exact, seeing, unable, request=replace(SMALL, exact=True)) == "exact"
    assert chosen(exact, seeing, unable, request=replace(SMALL, vision=True)) == "seeing"
    assert chosen(exact, unable, request=replace(SMALL, vision=True)) is Reason.VISION_NOT_SERVED
    assert chosen(seeing, unable, request=replace(SMALL, exact=True)) is Reason.EXACT_NOT_ON


def test_a_few_may_stand_in_line_at_a_provider_when_there_is_no_other() -> None:
    assert chosen(view("a", slot(running=4, waiting=1))) is Reason.QUEUE_FULL
    assert chosen(view("a", slot(running=8, waiting=1, max_concurrency=8))) == "a"
    busy = view("a", slot(running=4))
    assert chosen(busy) == "a"
    assert chosen(busy, view("b", slot(running=3))) == "b"
    assert chosen(fleet.full(busy, MODEL, until_s=5.0)) is Reason.QUEUE_FULL
    assert chosen(fleet.full(busy, MODEL, until_s=5.0), now_s=5.0) == "a"


def test_one_with_kv_room_goes_before_one_without() -> None:
    tight = view("tight", slot(tokens_max=100, tokens_used=50, tokens_queued=45))
    roomy = view("roomy", slot(tokens_max=1000, tokens_used=95, running=1))
    assert chosen(tight, roomy) == "roomy"
    assert chosen(tight) == "tight"


def test_tokens_that_we_have_just_sent_take_kv_room() -> None:
    held = fleet.held(view("a", slot(tokens_max=100)), "j.1", Hold(MODEL, 95))
    assert chosen(held, view("b", slot(running=1))) == "b"


def test_nobody_is_refused_for_an_estimate() -> None:
    seen = view("a", slot(tokens_max=100, tokens_used=90))
    assert chosen(seen, request=Request(MODEL, prompt_tokens=5000)) == "a"
    assert chosen(seen, request=Request(MODEL, prompt_tokens=5000, least_tokens=101)) is Reason.PROMPT_TOO_LONG


def test_what_is_loaded_goes_before_what_loads_before_what_could_be_loaded() -> None:
    order = [
        view("loaded", slot()),
        view("loading", slot(state="loading"), loading_since_s={MODEL: -5.0}),
        view("loadable"),
        view("unloading", slot(state="unloading")),
        view("unknown", memory=memory(free_for_load_bytes=None)),
    ]
    for place, first in enumerate(order):
        assert chosen(*reversed(order[place:])) == first.provider_id
    silent = view("silent", memory=None)
    assert chosen(silent) == "silent"
    assert chosen(silent, order[2]) == "loadable"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, GIB])
def test_a_provider_that_cannot_load_is_not_asked_to(bad: float) -> None:
    small = view("small", memory=memory(free_for_load_bytes=bad))
    assert chosen(small) is Reason.MEMORY_CAP
    assert chosen(small, view("busy", slot(running=4))) == "busy"
    assert chosen(view("warm", slot(), memory=memory(free_for_load_bytes=bad))) == "warm"


def test_a_long_prompt_goes_to_the_one_that_has_room_for_it() -> None:
    long = Request(MODEL, prompt_tokens=9000, least_tokens=5000)
    small = view("small", slot())
    large = view("large", models={MODEL: advert(context_length=32_768)})
    tight = view("tight", slot(tokens_max=4999), models={MODEL: advert(context_length=32_768)})
    assert chosen(small, large, tight, request=long) == "large"
    assert chosen(small, tight, request=long) is Reason.PROMPT_TOO_LONG


@pytest.mark.parametrize(
    ("seen", "longest"),
    [
        (view("p1", slot(), models={MODEL: advert(context_length=61)}), 60),
        (view("p1", slot(tokens_max=60)), 60),
        (view("p1", slot(state="loading", tokens_max=60), models={MODEL: advert(kv_bytes_per_token=GIB)}), 60),
    ],
)
def test_the_longest_prompt_that_could_fit_is_let_in(seen: ProviderView, longest: int) -> None:
    assert chosen(seen, request=replace(SMALL, least_tokens=longest)) == "p1"
    assert chosen(seen, request=replace(SMALL, least_tokens=longest + 1)) in (
        Reason.CONTEXT_EXCEEDED,
        Reason.PROMPT_TOO_LONG,
    )


def beyond(*views: ProviderView, least_tokens: int = 5000) -> Beyond | None:
    request = Request(MODEL, prompt_tokens=9000, least_tokens=least_tokens)
    decision = route(request, listed(*views), 0.0, random.Random(0), TIMINGS, TABLES)
    return decision.beyond if isinstance(decision, Refused) else None


def test_only_what_nobody_could_ever_serve_is_refused_for_the_whole_fleet() -> None:
    wide = {MODEL: advert(context_length=32_768)}
    small, tight = view("small", slot()), view("tight", slot(tokens_max=4999), models=wide)
    assert beyond(small) == Beyond(TooLong.CONTEXT_EXCEEDED, 4096)
    assert beyond(small, tight, view("other", models={})) == Beyond(TooLong.PROMPT_TOO_LONG, 4999)
    assert beyond(small, least_tokens=4095) is None
    for possible in [
        view("full", slot(running=9, tokens_max=5000, tokens_used=5000), models=wide, full_until_s={MODEL: 1.0}),
        view("draining", models=wide, draining=True),
        view("gone", models=wide, connected=False),
        view("unknown", slot(), models=wide),
        view("unknown context", models={MODEL: advert(context_length=0, kv_bytes_per_token=0)}),
        view("failed", slot(state="failed"), models=wide),
        view("nothing left", slot(kv_bytes_per_token=1), models=wide),
    ]:
        assert beyond(small, tight, possible) is None
    assert beyond() is None
    assert beyond(view("other", models={})) is None


def test_a_cooldown_ends_and_then_one_request_at_a_time_is_tried() -> None:
    cooling = view("a", slot(), cooldowns={MODEL: COOLING})
    trying = fleet.held(cooling, "j.1", Hold(MODEL, 5))
    assert chosen(trying, now_s=4.0) is Reason.COOLING
    assert chosen(fleet.held(cooling, "j.1", Hold("other", 5)), now_s=4.0) == "a"
    assert chosen(fleet.accepted(trying, "j.1"), now_s=4.0) == "a"
    assert chosen(replace(trying, cooldowns={MODEL: replace(COOLING, refusals=2)}), now_s=4.0) == "a"
    assert chosen(cooling, now_s=3.9) is Reason.COOLING
    assert chosen(cooling, view("b", slot(running=3)), now_s=3.9) == "b"
    assert chosen(cooling, now_s=4.0) == "a"


def test_the_reason_nearest_to_a_yes_is_told() -> None:
    draining = view("b", draining=True)
    assert chosen(view("a", now_s=-50), draining, view("c", models={})) is Reason.DRAINING


def test_an_empty_fleet_refuses_without_a_reason() -> None:
    refused = route(SMALL, listed(), 0.0, random.Random(0), TIMINGS, TABLES)
    assert isinstance(refused, Refused)
    assert refused.reason is None
    assert not refused.listed


def test_equals_share() -> None:
    fleet_of = listed(*(view(name, slot()) for name in "abcd"))
    rng = random.Random(1)
    picked = [route(SMALL, fleet_of, 0.0, rng, TIMINGS, TABLES) for _ in range(400)]
    shares = [sum(one.provider_id == name for one in picked if isinstance(one, Chosen)) for name in "abcd"]
    assert all(60 < share < 140 for share in shares)


def test_among_equals_the_one_that_parks_nobody_is_preferred_though_it_has_more_to_do() -> None:
    parking = view("p1", slot(parked=1))
    free = view("p2", slot(running=2))
    for seed in range(8):
        assert chosen(parking, free, seed=seed) == "p2"
    assert chosen(parking) == "p1"
