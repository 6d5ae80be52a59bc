"""The verdict: pass, warn and fail, and what else would fit."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from provider.memory.admission import Reading, ceiling_for_load, usable_for_load
from provider.memory.caps import GIB, effective_cap
from provider.memory.fit import Alternative, Fit, fit, fitting, largest_loadable_size, largest_machine_fit
from provider.memory.requirement import padded_weights
from tests.fixtures.worked_tiers import Tier, worked_tiers
from tests.soak import examples
from tests.unit.provider.test_memory_admission import machine, readings, sizes

BEST_FIRST = [Fit.PASS, Fit.WARN, Fit.FAIL]


def test_the_table_is_whole() -> None:
    assert len(worked_tiers()) == 8
    assert {one.machine for one in worked_tiers()} == {24, 32, 36}
    assert sum(one.fits for one in worked_tiers()) == 5


@pytest.mark.parametrize("tier", worked_tiers(), ids=str)
def test_every_worked_tier_can_be_served_or_never(tier: Tier) -> None:
    cap = effective_cap(tier.physical_bytes, 4 * GIB)

    assert largest_machine_fit(int(tier.required * GIB), cap) is tier.fits
    assert (fit(int(tier.required * GIB), machine(tier.machine, tier.machine)) is Fit.PASS) is tier.fits


def test_what_takes_the_whole_cap_fits() -> None:
    assert largest_machine_fit(20 * GIB, 20 * GIB)
    assert not largest_machine_fit(20 * GIB + 1, 20 * GIB)


@pytest.mark.parametrize(
    ("reading", "required", "verdict"),
    [
        (machine(24, 22), 18, Fit.PASS),
        (machine(24, 22), 18.001, Fit.FAIL),
        (machine(24, 8, active=12, idle=12), 4, Fit.PASS),
        (machine(24, 8, active=12, idle=12), 16, Fit.WARN),
        (machine(24, 8, active=12, idle=12), 16.001, Fit.FAIL),
        (machine(24, 8, active=12), 4.001, Fit.FAIL),  # loaded and at work
        (machine(24, 8, cache=3), 7, Fit.WARN),
        (machine(24, 0), 0, Fit.PASS),
    ],
)
def test_three_verdicts(reading: Reading, required: float, verdict: Fit) -> None:
    assert fit(int(required * GIB), reading) is verdict


def test_claims_of_other_loads_count_for_both_bounds() -> None:
    reading = machine(24, 8, active=12, idle=12)

    assert fit(4 * GIB, reading, outstanding_bytes=GIB) is Fit.WARN
    assert fit(16 * GIB, reading, outstanding_bytes=GIB) is Fit.FAIL


def test_what_fits_is_named_largest_first() -> None:
    found = [Alternative("b", 10, 12), Alternative("c", 30, 36), Alternative("a", 10, 12), Alternative("d", 25, 31)]

    assert [one.id for one in fitting(found, 31)] == ["d", "a", "b"]
    assert fitting(found, 0) == []


@given(ceiling=sizes, headroom=sizes)
def test_the_largest_size_that_fits_is_the_largest(ceiling: int, headroom: int) -> None:
    size = largest_loadable_size(ceiling, headroom)

    assert size == 0 or padded_weights(size) + headroom <= ceiling
    assert padded_weights(size + 1) + headroom > ceiling


@settings(max_examples=examples(10_000))
@given(reading=readings(), required=sizes, outstanding=sizes)
def test_a_verdict_follows_from_its_bounds(reading: Reading, required: int, outstanding: int) -> None:
    verdict = fit(required, reading, outstanding)

    assert (verdict is Fit.PASS) == (required <= usable_for_load(reading, outstanding))
    assert (verdict is Fit.FAIL) == (required > max(0, ceiling_for_load(reading) - outstanding))


@settings(max_examples=examples(10_000))
@given(reading=readings(), required=sizes, outstanding=sizes, more=sizes)
def test_needing_less_or_having_more_never_worsens_a_verdict(
    reading: Reading, required: int, outstanding: int, more: int
) -> None:
    before = BEST_FIRST.index(fit(required, reading, outstanding))
    idle = replace(reading, idle_bytes=reading.idle_bytes + more)

    assert BEST_FIRST.index(fit(max(0, required - more), reading, outstanding)) <= before
    assert BEST_FIRST.index(fit(required, reading, max(0, outstanding - more))) <= before
    assert BEST_FIRST.index(fit(required, idle, outstanding)) <= before
    if reading.available_bytes is not None:
        roomier = replace(reading, available_bytes=reading.available_bytes + more)
        assert BEST_FIRST.index(fit(required, roomier, outstanding)) <= before
