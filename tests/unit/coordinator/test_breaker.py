"""When a provider that keeps failing is left alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.breaker import FAILURES, FIRST_S, FORGOTTEN_AFTER_S, LONGEST_S, Breaker, BreakerState, failed
from tests.soak import examples


def after(failures: int, now_s: float = 100.0) -> Breaker:
    breaker = failed(None, now_s)
    for _ in range(failures - 1):
        now_s = max(now_s, breaker.until_s)
        breaker = failed(breaker, now_s)
    return breaker


def test_a_few_failures_open_nothing() -> None:
    breaker = after(FAILURES - 1)
    assert breaker.state(100.0) is BreakerState.CLOSED
    assert not breaker.forbids(100.0, trying=True)


def test_it_opens_then_lets_one_through_at_a_time() -> None:
    breaker = after(FAILURES)
    assert breaker.state(100.0) is BreakerState.OPEN
    assert breaker.forbids(100.0 + FIRST_S - 0.1, trying=False)
    assert breaker.state(100.0 + FIRST_S) is BreakerState.HALF_OPEN
    assert not breaker.forbids(100.0 + FIRST_S, trying=False)
    assert breaker.forbids(100.0 + FIRST_S, trying=True)


@pytest.mark.parametrize(("more", "length_s"), [(0, FIRST_S), (1, 2 * FIRST_S), (2, 4 * FIRST_S), (20, LONGEST_S)])
def test_each_failed_trial_doubles_the_time(more: int, length_s: float) -> None:
    breaker = after(FAILURES + more)
    assert breaker.until_s - breaker.failed_s == length_s


def test_what_was_under_way_when_it_opened_does_not_keep_it_open_for_longer() -> None:
    breaker = after(FAILURES)
    assert failed(breaker, 101.0) is breaker


def test_failures_far_apart_are_not_one_story() -> None:
    assert failed(after(FAILURES - 1), 100.0 + FORGOTTEN_AFTER_S).failures == 1


@settings(max_examples=examples(2000))
@given(st.lists(st.floats(0, 400), min_size=1, max_size=40))
def test_it_is_never_open_for_longer_than_the_longest(gaps: list[float]) -> None:
    now_s, breaker = 0.0, None
    for gap in gaps:
        now_s += gap
        breaker = failed(breaker, now_s)
        assert breaker.until_s - now_s <= LONGEST_S + 1e-6
        if breaker.failures < FAILURES:
            assert breaker.state(now_s) is BreakerState.CLOSED
