from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import cooldown, fleet, mirror
from coordinator.cooldown import FIRST_S, FORGOTTEN_AFTER_S, LONGEST_S, REFUSALS, Capacity, Cooldown
from coordinator.fleet import Hold, ProviderView
from provider.protocol import ModelsUpdate
from tests.unit.coordinator.views import GIB, MODEL, advert, beat, register, slot, view

IDLE = Capacity(loaded=True, full=False, tokens_max=100, max_concurrency=4, cold_load="admitted")


def refusals(*at_s: float) -> Cooldown | None:
    known: Cooldown | None = None
    for now_s in at_s:
        known = cooldown.refused(known, IDLE, now_s)
    return known


def test_a_cooldown_begins_with_the_third_refusal_in_a_row() -> None:
    for count in range(1, REFUSALS + 1):
        known = refusals(*range(count))
        assert known is not None
        assert known.active(count - 1) is (count == REFUSALS)
    assert known is not None
    assert known.until_s == REFUSALS - 1 + FIRST_S
    assert not known.active(known.until_s)


def test_each_refusal_after_a_cooldown_doubles_it_up_to_a_bound() -> None:
    known, lengths = refusals(0, 0, 0), []
    for _ in range(9):
        assert known is not None
        lengths.append(known.until_s - known.refused_s)
        known = cooldown.refused(known, IDLE, known.until_s)
    assert lengths == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert lengths[-1] == LONGEST_S


def test_what_was_under_way_when_it_began_does_not_lengthen_it() -> None:
    known = refusals(0, 0, 0)
    assert known is not None
    assert cooldown.refused(known, IDLE, 4.9) is known


def test_refusals_far_apart_are_not_in_a_row() -> None:
    known = refusals(0, 1, 1 + FORGOTTEN_AFTER_S)
    assert known is not None
    assert known.refusals == 1


@given(st.lists(st.floats(0, 900), max_size=60))
def test_a_cooldown_is_never_longer_than_its_bound(pauses: list[float]) -> None:
    known: Cooldown | None = None
    now_s = 0.0
    for pause_s in pauses:
        now_s += pause_s
        known = cooldown.refused(known, IDLE, now_s)
        assert known.until_s - now_s <= LONGEST_S
        assert known.refusals >= REFUSALS or not known.active(now_s)


# -- of a provider


def cooling(*slots: object) -> ProviderView:
    seen = view("p1", *slots)  # type: ignore[arg-type]
    known: Cooldown | None = None
    for _ in range(REFUSALS):
        known = cooldown.refused(known, mirror.capacity(seen, MODEL), 0.0)
    assert known is not None
    return fleet.cooled(seen, MODEL, known)


def test_an_accept_ends_it_for_that_model_alone() -> None:
    seen = cooling(slot())
    other = fleet.cooled(seen, "other", seen.cooldowns[MODEL])
    held = fleet.held(other, "j.1", Hold(MODEL, 5))
    assert set(fleet.accepted(held, "j.1").cooldowns) == {"other"}


def test_it_outlives_a_connection() -> None:
    seen = cooling(slot())
    gone = fleet.disconnected(seen, 1.0)
    again = fleet.registered(register(), 2, 2.0, gone)
    assert again.cooldowns == seen.cooldowns
    beaten = mirror.eased(fleet.beaten(again, beat(1, slots=(slot(),)), 3.0))
    assert beaten.cooldowns == seen.cooldowns


SAME = [slot(running=2), slot(tokens_used=7), slot(decode_tps=3.0), slot(parked=1), slot(state="running", running=1)]
OTHER = [slot(tokens_max=64), slot(max_concurrency=8), slot(running=4), slot(state="loading"), slot(state="failed")]


@pytest.mark.parametrize("told", SAME)
def test_the_ordinary_movement_of_load_does_not_end_it(told: object) -> None:
    beaten = fleet.beaten(cooling(slot()), beat(2, slots=(told,)), 1.0)  # type: ignore[arg-type]
    assert mirror.eased(beaten) is beaten
    assert beaten.cooldowns


@pytest.mark.parametrize("told", OTHER)
def test_another_capacity_ends_it(told: object) -> None:
    beaten = fleet.beaten(cooling(slot()), beat(2, slots=(told,)), 1.0)  # type: ignore[arg-type]
    assert not mirror.eased(beaten).cooldowns


def test_for_a_model_that_is_not_loaded_memory_ends_it_once_it_suffices() -> None:
    short = cooling()
    assert short.memory is not None
    tight = fleet.beaten(short, beat(2, free_for_load_bytes=GIB), 1.0)
    assert not mirror.eased(tight).cooldowns
    still = fleet.beaten(short, beat(2, free_for_load_bytes=5 * GIB), 1.0)
    assert mirror.eased(still).cooldowns
    heavier = fleet.models_replaced(short, ModelsUpdate(models=[advert(size_bytes=9 * GIB)]))
    assert not mirror.eased(heavier).cooldowns


def test_a_full_provider_is_asked_again_when_a_place_is_free() -> None:
    seen = cooling(slot(running=4))
    busy = mirror.eased(fleet.beaten(seen, beat(2, slots=(slot(running=4, waiting=1),)), 1.0))
    assert busy.cooldowns
    assert not mirror.eased(fleet.beaten(busy, beat(3, slots=(slot(running=3),)), 2.0)).cooldowns


def test_capacity_of_what_is_not_known_is_a_capacity() -> None:
    assert mirror.capacity(replace(view(), models={}), "none") == Capacity(False, False, 0, 0, "unknown")
