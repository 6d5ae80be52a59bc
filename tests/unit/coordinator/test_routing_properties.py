"""What holds of every decision, and that the columns say what the scalar oracle says."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import fleet, mirror
from coordinator.breaker import Breaker
from coordinator.config import Timings
from coordinator.cooldown import Capacity, Cooldown
from coordinator.fleet import Hold, ProviderView
from coordinator.mirror import ColdLoad
from coordinator.reasons import Reason
from coordinator.routing import TIE_MS, TIE_SHARE, Chosen, Refused, Request, explain, route
from coordinator.store.records import MemoryTables, Residency
from coordinator.views import Views
from provider.memory.floors import Floor
from provider.wire_limits import MOST_BYTES, MOST_NUMBER
from tests.soak import examples
from tests.unit.coordinator import oracle
from tests.unit.coordinator.views import GIB, MODEL, TABLES, advert, beat, listed, memory, slot, view

TIMINGS = Timings()
OTHER = "other"
FEW = st.integers(0, 6)
STATES = st.sampled_from(["idle", "running", "loading", "unloading", "failed"])
RATES = st.sampled_from([None, 0.0, -3.0, 1e-9, 1e300, 20.0, 37.5, 4000.0])
FREE = st.sampled_from([None, 0, -1, float("nan"), float("inf"), GIB * 6 // 5, GIB * 6 // 5 - 1, 9 * GIB])
MEASURED = MemoryTables(
    {**TABLES.floors, MODEL: Floor(GIB, "measured", "a test", "0.8.16")},
    {MODEL: Residency(GIB // 2, "measured", "0.8.16")},
)


@st.composite
def slots(draw: Callable[[st.SearchStrategy[Any]], Any], model: str = MODEL) -> Any:
    counts = {key: draw(FEW) for key in ("running", "waiting", "parked", "max_concurrency")}
    tokens = {key: draw(st.integers(0, 60)) for key in ("tokens_used", "tokens_queued", "tokens_max")}
    rates = {key: draw(RATES) for key in ("decode_tps", "prefill_tps")}
    return slot(
        model, state=draw(STATES), kv_bytes_per_token=draw(st.sampled_from([0, 64])), **counts, **tokens, **rates
    )


@st.composite
def adverts(draw: Callable[[st.SearchStrategy[Any]], Any], model: str = MODEL) -> Any:
    return advert(
        model,
        size_bytes=draw(st.sampled_from([0, 1, GIB, 3 * GIB, 40 * GIB])),
        context_length=draw(st.sampled_from([0, 60, 4096, 10**6])),
        kv_bytes_per_token=draw(st.sampled_from([0, 1024, 400_000, GIB])),
        vision=draw(st.booleans()),
        exact=draw(st.sampled_from(["on", "off", "unavailable"])),
    )


@st.composite
def views(draw: Callable[[st.SearchStrategy[Any]], Any], name: str = "p") -> ProviderView:
    models = {model: draw(adverts(model)) for model in (MODEL, OTHER) if draw(st.integers(0, 9))}
    told = tuple(draw(slots(model)) for model in (MODEL, OTHER) if draw(st.booleans()))
    seen = view(name, *told, now_s=-draw(st.sampled_from([0, 0, 0, 14, 15, 44, 45])))
    for number in range(draw(st.integers(0, 3))):
        seen = fleet.held(seen, f"{number}.1", Hold(draw(st.sampled_from([MODEL, OTHER])), draw(FEW)))
        if draw(st.booleans()):
            seen = fleet.accepted(seen, f"{number}.1")
    report = memory(
        free_for_load_bytes=draw(FREE),
        effective_cap_bytes=draw(st.sampled_from([None, -1, GIB, 900 * GIB])),
        activation_reserve_bytes=draw(st.sampled_from([None, -1, 0, 5 * GIB])),
    )
    until_s = draw(st.sampled_from([-1.0, 1.0]))
    refusals, failures = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 5]))
    capacity = Capacity(True, False, 0, 4, "unknown")
    return replace(
        seen,
        models=models,
        version=draw(st.sampled_from(["0.9.0", "0.8.0", ""])),
        connected=draw(st.integers(0, 9)) > 0,
        draining=draw(st.integers(0, 9)) == 0,
        thermal=draw(st.sampled_from(["nominal", "fair", "serious", "critical"])),
        full_until_s={MODEL: 1.0} if draw(st.integers(0, 5)) == 0 else {},
        cooldowns={MODEL: Cooldown(refusals, -1.0, until_s, capacity)} if draw(st.integers(0, 5)) == 0 else {},
        breakers={MODEL: Breaker(failures, -1.0, until_s)} if draw(st.integers(0, 5)) == 0 else {},
        memory=draw(st.sampled_from([None, report, report])),
        loading_since_s={MODEL: draw(st.sampled_from([-60.0, -3.0, 0.0]))} if draw(st.booleans()) else {},
        load_bytes_per_s=draw(st.sampled_from([None, 1e6, 5e9])),
    )


FLEETS = st.integers(0, 6).flatmap(lambda size: st.tuples(*(views(f"p{number}") for number in range(size))))
REQUESTS = st.builds(
    Request,
    st.sampled_from([MODEL, MODEL, MODEL, "none"]),
    st.sampled_from([0, 10, 59, 60, 9000]),
    st.sets(st.just("p0")),
    st.sampled_from([0, 0, 60, 4096, 10_000, 2_000_000]),
    st.sampled_from([1, 256]),
    exact=st.integers(0, 5).map(lambda drawn: drawn == 0),
    vision=st.integers(0, 5).map(lambda drawn: drawn == 0),
    served_last=st.sampled_from([None, "p1", "gone"]),
)
ALL_TABLES = st.sampled_from([TABLES, MEASURED, MemoryTables({}, {})])


@settings(max_examples=examples(5000))
@given(FLEETS, REQUESTS, ALL_TABLES)
def test_the_columns_say_what_the_oracle_says(
    seen: tuple[ProviderView, ...], request: Request, tables: MemoryTables
) -> None:
    found = explain(request, listed(*seen), 0.0, TIMINGS, tables)
    assert list(found) == [one.provider_id for one in seen]
    for one in seen:
        match oracle.verdict(request, one, seen, 0.0, TIMINGS, tables):
            case Reason() as reason:
                assert (found[one.provider_id].reason, found[one.provider_id].terms) == (reason, None)
            case terms:
                assert found[one.provider_id].reason is None
                assert found[one.provider_id].terms == pytest.approx(terms, rel=1e-9)


@settings(max_examples=examples(7500))
@given(FLEETS, REQUESTS, ALL_TABLES, st.integers(0, 99))
def test_the_chosen_is_among_the_cheapest_and_whoever_is_refused_has_a_reason(
    seen: tuple[ProviderView, ...], request: Request, tables: MemoryTables, seed: int
) -> None:
    known = listed(*seen)
    verdicts = explain(request, known, 0.0, TIMINGS, tables)
    costs = [one.cost_ms for one in verdicts.values() if one.cost_ms is not None]
    decision = route(request, known, 0.0, random.Random(seed), TIMINGS, tables)
    assert decision == route(request, known, 0.0, random.Random(seed), TIMINGS, tables), "it depends on nothing else"
    match decision:
        case Chosen(provider_id, cost_ms, terms, candidates):
            assert (cost_ms, terms) == (pytest.approx(verdicts[provider_id].cost_ms), verdicts[provider_id].terms)
            assert cost_ms <= min(costs) + max(TIE_MS, TIE_SHARE * min(costs)) + 1e-6
            assert candidates == len(costs)
            (one,) = (each for each in seen if each.provider_id == provider_id)
            assert not _refused_by_the_mirror(request, one, tables)
        case Refused(counts) as refused:
            reasons = [one.reason for one in verdicts.values() if one.reason is not None]
            assert not costs
            assert counts == {reason: reasons.count(reason) for reason in reasons}
            assert refused.beyond == _beyond(request, seen, tables)


def _refused_by_the_mirror(request: Request, one: ProviderView, tables: MemoryTables) -> bool:
    ad, told = one.models[request.model], one.slots.get(request.model)
    cold = told is None or told.state == "unloading"
    refused = mirror.too_long(request.least_tokens, one, ad, tables) is not None or mirror.known_zero(told)
    return refused or (cold and mirror.cold_load(one, ad) is ColdLoad.REFUSED)


def _beyond(request: Request, seen: tuple[ProviderView, ...], tables: MemoryTables) -> Any:
    """As the mirror says of each alone."""
    from coordinator.routing import Beyond

    serving = [(one, one.models[request.model]) for one in seen if request.model in one.models]
    verdicts = {mirror.too_long(request.least_tokens, one, ad, tables) for one, ad in serving}
    if not verdicts or None in verdicts:
        return None
    reason = max(verdicts, key=lambda each: each is mirror.TooLong.PROMPT_TOO_LONG)
    return Beyond(reason, max(mirror.longest_prompt(one, ad, tables) for one, ad in serving))


LOADS = ["running", "waiting", "parked", "tokens_used", "tokens_queued"]


@settings(max_examples=examples(5000))
@given(views(), REQUESTS, st.sampled_from([*LOADS, "hold"]), st.integers(0, 60))
def test_more_load_never_lowers_the_cost(seen: ProviderView, request: Request, what: str, more: int) -> None:
    if what == "hold":
        heavier = fleet.held(seen, "more.1", Hold(request.model, more))
    else:
        told = tuple(each.model_copy(update={what: getattr(each, what) + more}) for each in seen.slots.values())
        heavier = replace(seen, slots=fleet.beaten(seen, beat(9, slots=told), 0.0).slots)
    (before,) = explain(request, listed(seen), 0.0, TIMINGS, TABLES).values()
    (after,) = explain(request, listed(heavier), 0.0, TIMINGS, TABLES).values()
    assert after.cost_ms is None or (before.cost_ms is not None and after.cost_ms >= before.cost_ms - 1e-6)


CHANGES = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), views())), max_size=12)


@settings(max_examples=examples(2500))
@given(CHANGES, REQUESTS, ALL_TABLES)
def test_rows_kept_up_to_date_are_those_made_afresh(
    changes: list[tuple[int, ProviderView | None]], request: Request, tables: MemoryTables
) -> None:
    """In steps: whole views that come, change and go, and parts of them that are replaced."""
    known, plain = Views(), {}
    for number, (place, change) in enumerate(changes):
        name = f"p{place}"
        if change is None and name not in plain:
            continue
        if change is None:
            del known[name], plain[name]
        else:
            plain[name] = _partly(plain.get(name), replace(change, provider_id=name, generation=number), number)
            known[name] = plain[name]
        fresh = listed(*plain.values())
        assert explain(request, known, 0.0, TIMINGS, tables) == explain(request, fresh, 0.0, TIMINGS, tables)
        assert known.models == sorted({model for one in plain.values() for model in one.models})
        assert dict(known) == plain


PARTS = [
    "slots",
    "holds",
    "full_until_s",
    "cooldowns",
    "breakers",
    "memory",
    "thermal",
    "draining",
    "counted",
    "models",
]


def _partly(former: ProviderView | None, new: ProviderView, number: int) -> ProviderView:
    """The whole view, or one part of it put into the former one."""
    if former is None or number % 4 == 0:
        return new
    part = PARTS[number % len(PARTS)]
    return replace(former, **{part: getattr(new, part)})


@pytest.mark.parametrize("state", ["idle", "loading", "unloading", "none"])
def test_the_largest_numbers_that_may_be_sent_end_in_a_cost_or_a_reason(state: str) -> None:
    names = ("running", "waiting", "parked", "tokens_used", "tokens_queued", "max_concurrency")
    counts = {**dict.fromkeys(names, MOST_NUMBER), "kv_bytes_per_token": MOST_BYTES}
    told = () if state == "none" else (slot(state=state, tokens_max=7, **counts),)
    sizes = dict.fromkeys(("size_bytes", "kv_bytes_per_token", "state_bytes"), MOST_BYTES)
    ad = advert(context_length=MOST_NUMBER, **sizes)
    huge = view("huge", *told, models={MODEL: ad}, memory=memory(free_for_load_bytes=MOST_BYTES))
    known = listed(fleet.held(huge, "1.1", Hold(MODEL, MOST_NUMBER)), view("well", slot()))
    for least_tokens in (0, 2**40):
        request = Request(MODEL, 2**40, least_tokens=least_tokens)
        for one in explain(request, known, 0.0, TIMINGS, TABLES).values():
            assert one.reason is not None or (one.cost_ms is not None and math.isfinite(one.cost_ms))
        match route(request, known, 0.0, random.Random(0), TIMINGS, TABLES):
            case Chosen(_, cost_ms):
                assert math.isfinite(cost_ms)
            case Refused(counts):
                assert sum(counts.values()) == 2
