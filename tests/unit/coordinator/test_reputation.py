"""What is held against providers that are not listed any more."""

from dataclasses import replace

from coordinator.breaker import FORGOTTEN_AFTER_S, Breaker, Witness
from coordinator.cooldown import Capacity, Cooldown
from coordinator.occasional import Occasional
from coordinator.reputation import Reputations
from tests.unit.coordinator.views import view

BREAKER = Breaker(5, 100.0, 110.0, (Witness(1, b"x"),))
COOLDOWN = Cooldown(3, 100.0, 105.0, Capacity(True, False, 1, 1, "admitted"))


def test_it_is_restored_once_and_for_as_long_as_it_says_anything() -> None:
    kept = Reputations()
    kept.keep(replace(view("p"), breakers={"m": BREAKER}, cooldowns={"n": COOLDOWN}), 100.0)
    kept.keep(view("nothing"), 100.0)
    assert len(kept) == 1
    back = kept.restored(view("p"), 300.0)
    assert (back.breakers, back.cooldowns) == ({"m": BREAKER}, {"n": COOLDOWN})
    assert kept.restored(view("p"), 300.0) == view("p")
    kept.keep(back, 100.0 + FORGOTTEN_AFTER_S)
    assert len(kept) == 0
    kept.keep(back, 300.0)
    assert kept.restored(view("p"), 100.0 + FORGOTTEN_AFTER_S) == view("p")


def test_the_oldest_is_given_up_for_want_of_room() -> None:
    kept = Reputations(most_pairs=3)
    for name in "abc":
        kept.keep(replace(view(name), breakers={"m": BREAKER}), 100.0)
    kept.keep(replace(view("b"), breakers={"m": BREAKER, "n": BREAKER}), 100.0)
    assert len(kept) == 2
    assert not kept.restored(view("a"), 100.0).breakers
    assert len(kept.restored(view("b"), 100.0).breakers) == 2
    assert kept.restored(view("c"), 100.0).breakers


def test_what_happens_all_the_time_is_told_once_a_minute() -> None:
    told = Occasional(60.0)
    assert [told.happened("a", at) for at in (0.0, 1.0, 59.0, 60.0, 61.0, 500.0)] == [1, None, None, 3, None, 2]
    assert told.happened("b", 0.0) == 1
