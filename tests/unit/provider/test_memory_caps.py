"""Caps, the operator's reserve and the KV budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.memory.caps import (
    CAP_FRACTION,
    GIB,
    MINIMUM_KV_BYTES,
    OS_FLOOR_BYTES,
    cap_fraction,
    effective_cap,
    gib_to_bytes,
    hard_cap,
    kv_budget,
    load_reserve,
    minimum_serviceable_kv,
)
from tests.fixtures.worked_tiers import Tier, worked_tiers

sizes = st.integers(0, 2**42)


@pytest.mark.parametrize("tier", worked_tiers(), ids=str)
def test_the_cap_of_every_worked_tier(tier: Tier) -> None:
    assert effective_cap(tier.physical_bytes, 4 * GIB) / GIB == pytest.approx(tier.cap, abs=0.01)


@pytest.mark.parametrize(
    ("physical_gib", "cap_gib"),
    [
        (8, 6),  # the operating system's 2 GiB weigh more than a tenth
        (16, 14),
        (20, 18),  # here they are the same
        (24, 21.6),
        (64, 57.6),
        (2, 0),
        (1, 0),
        (0, 0),
    ],
)
def test_a_tenth_is_left_and_never_less_than_two_gib(physical_gib: int, cap_gib: float) -> None:
    assert hard_cap(physical_gib * GIB) == int(cap_gib * GIB)


@pytest.mark.parametrize(
    ("physical", "reserve", "limit", "cap"),
    [
        (24, 4, None, 20),
        (24, 0, None, 21.6),  # the hard cap stands whatever the operator says
        (24, 2, None, 21.6),
        (24, 30, None, 0),
        (24, 4, 10, 10),
        (24, 4, 22, 20),
        (24, 4, 0, 0),
    ],
)
def test_the_operator_lowers_the_cap_and_never_raises_it(
    physical: int, reserve: int, limit: int | None, cap: float
) -> None:
    limit_bytes = None if limit is None else limit * GIB

    assert effective_cap(physical * GIB, reserve * GIB, limit_bytes) == int(cap * GIB)


@pytest.mark.parametrize(
    ("told", "fraction"),
    [
        (None, CAP_FRACTION),
        ("", CAP_FRACTION),
        ("0", CAP_FRACTION),
        ("-0.5", CAP_FRACTION),
        ("nan", CAP_FRACTION),
        ("inf", CAP_FRACTION),
        ("-inf", CAP_FRACTION),
        ("most", CAP_FRACTION),
        ("0.5", 0.5),
        (" 0.75 ", 0.75),
        ("1", 1.0),
        ("90", 1.0),
    ],
)
def test_a_fraction_that_is_none_is_as_if_unset(told: str | None, fraction: float) -> None:
    assert cap_fraction(told) == fraction


def test_a_fraction_of_one_still_leaves_the_systems_floor() -> None:
    assert hard_cap(24 * GIB, 1.0) == 22 * GIB


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ("3.5", 7 * GIB // 2),
        ("6", 6 * GIB),
        (" 0.25 ", GIB // 4),
        (None, None),
        ("", None),
        ("0", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("-inf", None),
        ("3 GiB", None),
    ],
)
def test_a_variable_in_gib_is_bytes_or_nothing(told: str | None, size: int | None) -> None:
    assert gib_to_bytes(told) == size


def test_a_number_too_large_for_any_machine_is_still_a_number() -> None:
    assert (gib_to_bytes("1e308") or 0) > 2**1000


@pytest.mark.parametrize(
    ("context_bytes", "concurrent", "minimum"),
    [(32 * GIB, 8, GIB), (GIB // 8, 8, GIB), (2**20, 8, 8 * 2**20), (2**20, 1, 2**20), (0, 8, 0)],
)
def test_a_small_model_is_served_with_less_than_a_gib_of_kv(context_bytes: int, concurrent: int, minimum: int) -> None:
    assert minimum_serviceable_kv(context_bytes, concurrent) == minimum <= MINIMUM_KV_BYTES


@pytest.mark.parametrize(
    ("machine", "resident", "reserve", "budget"),
    # gpt-oss-20b at its measured 11.25 GiB, by its own floor and by the default.
    [(24, 11.25, 3.5, 5.25), (24, 11.25, 5.5, 3.25), (32, 11.25, 3.5, 13.25), (32, 11.25, 5.5, 11.25), (8, 9, 5.5, 0)],
)
def test_the_kv_budget_is_what_weights_and_reserve_leave(
    machine: int, resident: float, reserve: float, budget: float
) -> None:
    cap = effective_cap(machine * GIB, 4 * GIB)

    assert kv_budget(cap, int(resident * GIB), int(reserve * GIB)) == int(budget * GIB)


@given(physical=sizes, reserve=sizes, limit=st.none() | sizes, fraction=st.floats(0.01, 1.0))
def test_cap_and_load_reserve_share_the_machine(
    physical: int, reserve: int, limit: int | None, fraction: float
) -> None:
    cap = effective_cap(physical, reserve, limit, fraction)

    assert 0 <= cap <= hard_cap(physical, fraction) <= max(0, physical - OS_FLOOR_BYTES)
    assert cap + load_reserve(physical, cap) == physical
    if limit is None and reserve <= physical:
        assert load_reserve(physical, cap) == max(reserve, physical - hard_cap(physical, fraction))


@given(cap=sizes, resident=sizes, reserve=sizes)
def test_a_budget_is_never_negative_and_never_beyond_the_cap(cap: int, resident: int, reserve: int) -> None:
    assert 0 <= kv_budget(cap, resident, reserve) <= cap
