"""The rows beside the views: renewed by whatever changes in a view, and by nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from coordinator import fleet
from coordinator.breaker import FAILURES, Breaker
from coordinator.config import Timings
from coordinator.cooldown import Capacity, Cooldown
from coordinator.fleet import Hold, ProviderView
from coordinator.routing import Candidate, Request, explain
from coordinator.store.records import MemoryTables
from coordinator.views import Views
from provider.protocol import ModelsUpdate
from tests.unit.coordinator.views import GIB, MODEL, TABLES, advert, beat, listed, memory, slot, view

TIMINGS = Timings()
WARM = view("p1", slot(tokens_max=1000))
COLD = view("p1", memory=memory(free_for_load_bytes=2 * GIB))
LOADING = view("p1", slot(state="loading"), loading_since_s={MODEL: -5.0})
HALF_OPEN = replace(WARM, breakers={MODEL: Breaker(FAILURES, failed_s=-20.0, until_s=-10.0)})
COOLING = Cooldown(3, -1.0, 4.0, Capacity(True, False, 0, 4, "unknown"))
OPEN = Breaker(FAILURES, failed_s=-1.0, until_s=4.0)


def verdict(views: Views, tables: MemoryTables = TABLES) -> Candidate:
    return explain(Request(MODEL, 100), views, 0.0, TIMINGS, tables)["p1"]


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (WARM, {"slots": {MODEL: slot(tokens_max=1000, running=1)}}),
        (WARM, {"slots": {}}),
        (WARM, {"holds": {"a.1": Hold(MODEL, 5)}}),
        (WARM, {"full_until_s": {MODEL: 1.0}}),
        (WARM, {"cooldowns": {MODEL: COOLING}}),
        (WARM, {"breakers": {MODEL: OPEN}}),
        (HALF_OPEN, {"counted": {"a.1": Hold(MODEL, 5, accepted=True)}}),
        (HALF_OPEN, {"breakers": {}, "draining": True}),
        (WARM, {"thermal": "critical"}),
        (WARM, {"draining": True}),
        (WARM, {"connected": False}),
        (WARM, {"heard_s": -15.0}),
        (WARM, {"models": {MODEL: advert(context_length=50, size_bytes=0)}, "slots": {}}),
        (WARM, {"models": {}}),
        (COLD, {"memory": memory(free_for_load_bytes=GIB)}),
        (COLD, {"memory": memory(free_for_load_bytes=None)}),
        (COLD, {"memory": memory(free_for_load_bytes=-1)}),
        (COLD, {"memory": None}),
        (replace(COLD, memory=None), {"memory": memory()}),
        (COLD, {"load_bytes_per_s": 5e9}),
        (LOADING, {"loading_since_s": {MODEL: -1.0}}),
        (LOADING, {"load_bytes_per_s": 1e6}),
    ],
)
def test_whatever_changes_what_a_provider_costs_renews_its_row(before: ProviderView, change: dict[str, Any]) -> None:
    known = listed(before)
    was = verdict(known)
    known["p1"] = replace(before, **change)
    assert verdict(known) == verdict(listed(replace(before, **change)))
    assert verdict(known) != was


def test_a_beat_renews_what_it_brings_and_what_it_no_longer_names() -> None:
    both = {MODEL: advert(), "other": advert("other")}
    known = listed(view("p1", slot(running=3), models=both))
    known["p1"] = fleet.beaten(known["p1"], beat(2, slots=(slot("other"),)), 0.0)
    assert verdict(known) == verdict(listed(known["p1"]))
    assert verdict(known).terms is not None
    assert known.models == [MODEL, "other"]


def test_a_models_context_is_the_longest_that_is_known() -> None:
    known = listed(
        view("p1", models={MODEL: advert(context_length=0), "other": advert("other", context_length=0)}),
        view("p2", models={MODEL: advert(context_length=2048)}),
        view("p3", models={MODEL: advert(context_length=8192)}),
    )
    assert [known.context_length(name) for name in (MODEL, "other", "nobody's")] == [8192, None, None]
    del known["p3"]
    assert known.context_length(MODEL) == 2048


def test_other_tables_make_other_estimates() -> None:
    """Of a provider that tells no reserve of its own: in a GiB, the room that 12 000 tokens need."""
    untold = memory(activation_reserve_bytes=None, effective_cap_bytes=0, free_for_load_bytes=None)
    ad = advert("gpt-oss-20b", size_bytes=6 * GIB, kv_bytes_per_token=100_000, context_length=10**6)
    hardware = view().hardware.model_copy(update={"memory_bytes": 13 * GIB})
    known = listed(view("p1", models={ad.id: ad}, memory=untold, hardware=hardware))
    long = Request(ad.id, 20_000, least_tokens=20_000)
    with_table = explain(long, known, 0.0, TIMINGS, TABLES)["p1"].reason
    without = explain(long, known, 0.0, TIMINGS, MemoryTables({}, {}))["p1"].reason
    assert (with_table, without) == (None, "prompt_too_long")
    assert explain(long, known, 0.0, TIMINGS, TABLES)["p1"].reason is None


def test_what_leaves_gives_its_row_to_another() -> None:
    known = Views()
    for name in "abc":
        known[name] = view(name, slot(running="abc".index(name)))
    del known["a"]
    known["d"] = view("d", slot(running=3))
    found = explain(Request(MODEL, 100), known, 0.0, TIMINGS, TABLES)
    assert found == explain(Request(MODEL, 100), listed(*known.values()), 0.0, TIMINGS, TABLES)
    assert list(found) == ["b", "c", "d"]
    for name in "bcd":
        del known[name]
    assert (len(known), known.models, known.seen(MODEL, TABLES)) == (0, [], None)


def test_a_fleet_grows_beyond_its_first_rows() -> None:
    names = [f"p{number}" for number in range(100)]
    known = listed(*(view(name, slot(running=number % 5)) for number, name in enumerate(names)))
    found = explain(Request(MODEL, 100), known, 0.0, TIMINGS, TABLES)
    for name in names:
        assert found[name] == explain(Request(MODEL, 100), listed(known[name]), 0.0, TIMINGS, TABLES)[name]


def test_the_names_of_models_follow_who_comes_goes_and_is_there() -> None:
    views = listed(view("a", models={"x": advert("x"), "y": advert("y")}), view("b", models={"y": advert("y")}))
    assert (views.models, views.present, views.most_served(1)) == (["x", "y"], ["x", "y"], ["y"])
    views["a"] = fleet.disconnected(views["a"], 1.0)
    assert (views.models, views.present) == (["x", "y"], ["y"])
    views["b"] = fleet.models_replaced(views["b"], ModelsUpdate(models=[advert("z")]))
    assert (views.models, views.present) == (["x", "y", "z"], ["z"])
    views["a"] = replace(views["a"], connected=True)
    assert views.present == ["x", "y", "z"]
    del views["b"]
    assert (views.models, views.present, views.most_served(5)) == (["x", "y"], ["x", "y"], ["x", "y"])
    del views["a"]
    assert (views.models, views.present) == ([], [])
