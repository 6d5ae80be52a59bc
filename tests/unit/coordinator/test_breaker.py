"""When a provider that keeps failing is left alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.breaker import (
    FAILURES,
    FIRST_S,
    FORGOTTEN_AFTER_S,
    LATELY_S,
    LONGEST_S,
    Breaker,
    BreakerState,
    Served,
    Witness,
    failed,
)
from tests.soak import examples


def by(key: int | None, what: int) -> Witness:
    return Witness(key, b"%d" % what)


def after(failures: int, now_s: float = 100.0) -> Breaker:
    """Of as many requests of one key."""
    breaker = failed(None, now_s, by(1, 0))
    for number in range(1, failures):
        now_s = max(now_s, breaker.until_s)
        breaker = failed(breaker, now_s, by(1, number))
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
    assert failed(breaker, 101.0, by(2, 0)) is breaker


def test_failures_far_apart_are_not_one_story() -> None:
    assert failed(after(FAILURES - 1), 100.0 + FORGOTTEN_AFTER_S, by(1, 99)).failures == 1


def test_a_trial_that_fails_shuts_it_again_and_only_a_new_witness_for_longer() -> None:
    breaker = after(FAILURES)
    for number in range(FAILURES):
        now_s = breaker.until_s
        breaker = failed(breaker, now_s, by(1, number))
        assert breaker.failures == FAILURES
        assert breaker.until_s == now_s + FIRST_S
    assert failed(breaker, breaker.until_s, by(2, 0)).until_s == breaker.until_s + 2 * FIRST_S


def test_trials_by_requests_that_were_heard_before_do_not_let_it_be_forgotten() -> None:
    breaker = after(FAILURES)
    while breaker.failed_s < 100.0 + 2 * FORGOTTEN_AFTER_S:
        breaker = failed(breaker, breaker.until_s, by(1, 0))
    assert breaker.failures == FAILURES


def test_what_ends_together_for_one_reason_is_one_failure() -> None:
    breaker = failed(None, 100.0, by(1, 0))
    for number in range(1, 9):
        assert failed(breaker, 100.05, Witness(number, b"its own", shared=True)) is breaker
    assert failed(breaker, 100.05, by(2, 0)).failures == 2
    assert failed(breaker, 100.2, Witness(2, b"its own", shared=True)).failures == 2


def test_where_others_are_served_the_last_word_is_not_that_of_a_single_key() -> None:
    breaker = after(FAILURES - 1)
    assert failed(breaker, 100.0, by(1, 99), others_served=True) is breaker
    for witness in (by(2, 0), by(None, 0)):
        assert failed(breaker, 100.0, witness, others_served=True).failures == FAILURES
    assert failed(breaker, 100.0, by(1, 99)).failures == FAILURES


def test_who_was_served_of_late_is_known_but_for_the_one_who_asks() -> None:
    served = Served(pairs=2)
    served.note("p", "m", 1, 0.0)
    served.note("p", "m", 1, 5.0)
    assert [served.others("p", "m", key, 5.0) for key in (1, 2, None)] == [False, True, True]
    served.note("p", "m", 2, 10.0)
    served.note("p", "m", 2, 20.0)
    assert [served.others("p", "m", key, 20.0) for key in (1, 2, 3)] == [True, True, True]
    assert [served.others("p", "m", key, 5.0 + LATELY_S) for key in (1, 2, 3)] == [True, False, True]
    assert not served.others("p", "m", 1, 20.0 + LATELY_S)
    for model in ("x", "y"):
        served.note("p", model, 1, 20.0)
    assert not served.others("p", "m", 1, 20.0)


@settings(max_examples=examples(2000))
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2]), st.integers(0, 9), st.floats(0, 9)), max_size=40), st.booleans()
)
def test_it_opens_by_as_many_witnesses_and_not_before(said: list[tuple[int, int, float]], others: bool) -> None:
    """Every failure in a row, none of them too old: a plain account of who has been heard."""
    now_s, breaker, heard = 0.0, None, list[Witness]()
    for key, what, gap_s in said:
        now_s += gap_s
        witness = by(key, what)
        breaker = failed(breaker, now_s, witness, others)
        alone = others and len(heard) == FAILURES - 1 and {one.key for one in heard} == {key}
        if witness not in heard and not alone:
            heard.append(witness)
        assert breaker.failures == len(heard)
        assert (breaker.state(now_s) is BreakerState.CLOSED) is (len(heard) < FAILURES)
        if len(heard) == FAILURES:
            return


@settings(max_examples=examples(2000))
@given(st.lists(st.floats(0, 400), min_size=1, max_size=40))
def test_it_is_never_open_for_longer_than_the_longest(gaps: list[float]) -> None:
    now_s, breaker = 0.0, None
    for number, gap in enumerate(gaps):
        now_s += gap
        breaker = failed(breaker, now_s, by(1, number))
        assert breaker.until_s - now_s <= LONGEST_S + 1e-6
        if breaker.failures < FAILURES:
            assert breaker.state(now_s) is BreakerState.CLOSED
