"""How long a model that keeps failing is left alone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from provider.cool_off import FIRST_S, FORGOTTEN_AFTER_S, LONGEST_S, CoolOff
from tests.soak import examples


def test_it_doubles_from_one_minute_to_a_quarter_of_an_hour() -> None:
    now, one, lengths = 1000.0, CoolOff(), list[float]()
    for _ in range(7):
        one = one.after_failure(now)
        lengths.append(one.left_s(now))
        now = one.ends_at + 1
    assert lengths == [60, 120, 240, 480, 900, 900, 900]


def test_a_model_that_has_lasted_starts_with_the_shortest_again() -> None:
    one = CoolOff().after_failure(0.0).after_failure(60.0)
    assert one.after_failure(one.ends_at + FORGOTTEN_AFTER_S - 1).failures == 3
    again = one.after_failure(one.ends_at + FORGOTTEN_AFTER_S)
    assert (again.failures, again.left_s(again.ends_at - FIRST_S)) == (1, FIRST_S)


def test_what_has_not_failed_is_not_remembered() -> None:
    assert not CoolOff().remembers(0.0)
    assert CoolOff().left_s(5.0) == 0


@settings(max_examples=examples(2_000), deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 3000), min_size=1, max_size=60))
def test_at_any_times_of_failing_it_is_within_its_bounds_and_ends(waits: list[float]) -> None:
    now, one = 0.0, CoolOff()
    for wait in waits:
        now += wait
        before, one = one, one.after_failure(now)
        assert FIRST_S <= one.left_s(now) <= LONGEST_S + 1e-6
        assert one.failures == (before.failures + 1 if before.remembers(now) else 1)
        assert one.left_s(one.ends_at) == 0
