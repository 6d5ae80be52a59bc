"""How models share the room for keys and values."""

from hypothesis import given, settings
from hypothesis import strategies as st

from provider.memory.caps import GIB
from provider.memory.grants import CONTEXT_CAP_TOKENS, Member, clamped, shares
from tests.soak import examples

KIB = 2**10
members = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(
        Member,
        kv_bytes_per_token=st.none() | st.integers(0, 256 * KIB),
        context_tokens=st.integers(1, 2**20),
        minimum_bytes=st.integers(0, GIB),
    ),
)
grants = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4 * GIB))


def member(kv_kib: int | None, context: int = 32768, minimum: int = GIB) -> Member:
    return Member(None if kv_kib is None else kv_kib * KIB, context, minimum)


def test_one_model_has_the_whole_budget() -> None:
    assert shares(9 * GIB, {"a": member(48)}) == {"a": 9 * GIB}


def test_several_share_by_what_a_full_context_takes() -> None:
    assert shares(12 * GIB, {"a": member(48), "b": member(24)}) == {"a": 8 * GIB, "b": 4 * GIB}
    assert shares(12 * GIB, {"a": member(48, 16384), "b": member(48, 32768)}) == {"a": 4 * GIB, "b": 8 * GIB}


def test_a_very_long_context_weighs_no_more_than_the_cap() -> None:
    long, longest = member(24, CONTEXT_CAP_TOKENS), member(24, 8 * CONTEXT_CAP_TOKENS)

    assert shares(8 * GIB, {"a": long, "b": longest}) == {"a": 4 * GIB, "b": 4 * GIB}


def test_an_unknown_rate_means_equal_shares() -> None:
    assert shares(9 * GIB, {"a": member(48), "b": member(None), "c": member(1)}) == dict.fromkeys("abc", 3 * GIB)


def test_nobody_is_left_below_its_minimum() -> None:
    assert shares(4 * GIB, {"a": member(300), "b": member(1)}) == {"a": 3 * GIB, "b": GIB}


def test_a_small_models_minimum_is_its_own() -> None:
    small = Member(KIB, 4096, 8 * 4096 * KIB)

    assert shares(GIB + small.minimum_bytes, {"a": member(300), "b": small}) == {"a": GIB, "b": small.minimum_bytes}


def test_minima_that_do_not_fit_together_refuse_the_newcomer() -> None:
    assert shares(3 * GIB - 1, {"a": member(48), "b": member(48), "c": member(1)}) is None


def test_only_an_explicit_regrow_gives_room_back() -> None:
    granted = {"a": 2 * GIB, "b": 4 * GIB}

    assert clamped(granted, {"a": 3 * GIB, "b": GIB, "c": GIB}) == {"a": 2 * GIB, "b": GIB, "c": GIB}
    assert clamped({}, {"a": 3 * GIB}) == {"a": 3 * GIB}


def test_nobody_resident_shares_nothing() -> None:
    assert shares(GIB, {}) == {}


@settings(max_examples=examples(10_000), deadline=None)
@given(budget=st.integers(0, 8 * GIB), resident=members)
def test_shares_fill_the_budget_and_no_more(budget: int, resident: dict[str, Member]) -> None:
    found = shares(budget, resident)

    assert (found is None) == (sum(one.minimum_bytes for one in resident.values()) > budget)
    if found is not None:
        assert found.keys() == resident.keys()
        assert sum(found.values()) <= budget
        assert all(found[id] >= one.minimum_bytes for id, one in resident.items())
        assert not resident or budget - sum(found.values()) < len(resident)  # but for what division drops


@settings(max_examples=examples(5000), deadline=None)
@given(granted=grants, wanted=grants)
def test_a_clamp_never_grows_a_grant(granted: dict[str, int], wanted: dict[str, int]) -> None:
    found = clamped(granted, wanted)

    assert found.keys() == wanted.keys()
    assert all(found[id] <= wanted[id] for id in wanted)
    assert all(found[id] <= granted[id] for id in wanted if id in granted)


@settings(max_examples=examples(5000), deadline=None)
@given(budget=st.integers(0, 8 * GIB), more=st.integers(0, GIB), resident=members)
def test_a_larger_budget_never_refuses_what_a_smaller_one_grants(
    budget: int, more: int, resident: dict[str, Member]
) -> None:
    if shares(budget, resident) is not None:
        assert shares(budget + more, resident) is not None
