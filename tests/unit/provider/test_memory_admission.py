"""The gate: readings against requirements."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.memory.admission import (
    Reading,
    can_load,
    ceiling_for_load,
    eviction_can_reach,
    fits_at_allocation,
    live_kv_headroom,
    max_loadable_weight,
    usable_for_load,
)
from provider.memory.caps import GIB, effective_cap
from provider.memory.requirement import Charge, padded_weights, required_for_load, sequence_bytes
from tests.fixtures.worked_tiers import Tier, worked_tiers
from tests.soak import examples

sizes = st.integers(0, 2**40)


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    """Also impossible ones: more in use than there is, more idle than in use."""
    physical = draw(sizes)
    cap = draw(st.integers(0, physical))
    return Reading(
        physical_bytes=physical,
        cap_bytes=cap,
        machine_cap_bytes=draw(st.none() | st.integers(cap, physical)),
        available_bytes=draw(st.none() | sizes),
        active_bytes=draw(sizes),
        cache_bytes=draw(sizes),
        idle_bytes=draw(sizes),
    )


def machine(physical: float, available: float | None, active: float = 0, cache: float = 0, idle: float = 0) -> Reading:
    """In GiB, with the default reserve."""
    size = int(physical * GIB)
    return Reading(
        physical_bytes=size,
        cap_bytes=effective_cap(size, 4 * GIB),
        available_bytes=None if available is None else int(available * GIB),
        active_bytes=int(active * GIB),
        cache_bytes=int(cache * GIB),
        idle_bytes=int(idle * GIB),
    )


@pytest.mark.parametrize("tier", worked_tiers(), ids=str)
def test_every_worked_tier_needs_what_the_table_says(tier: Tier) -> None:
    padded = padded_weights(tier.size_bytes)
    required = required_for_load(Charge(tier.size_bytes), int(tier.reserve * GIB), GIB)
    cap = effective_cap(tier.physical_bytes, 4 * GIB)

    assert padded / GIB == pytest.approx(tier.padded, abs=0.01)
    assert required / GIB == pytest.approx(tier.required, abs=0.01)
    assert (cap - required) / GIB == pytest.approx(tier.spare, abs=0.01)
    assert (required + tier.physical_bytes - cap) / GIB == pytest.approx(tier.free, abs=0.01)
    assert (required <= cap) is tier.fits


@pytest.mark.parametrize("tier", worked_tiers(), ids=str)
def test_every_worked_tier_passes_the_gate_at_its_free_memory_and_not_below(tier: Tier) -> None:
    required = required_for_load(Charge(tier.size_bytes), int(tier.reserve * GIB), GIB)

    assert can_load(required, machine(tier.machine, tier.free + 0.01)) is tier.fits
    assert not can_load(required, machine(tier.machine, tier.free - 0.01))


@pytest.mark.parametrize(
    ("size", "padded"), [(0, 0), (1, 2), (5, 6), (6, 8), (10, 12), (12_100_000_000, 14_520_000_000)]
)
def test_padding_is_a_fifth_rounded_up(size: int, padded: int) -> None:
    assert padded_weights(size) == padded


def test_an_assistant_is_charged_with_its_own_padding() -> None:
    charge = Charge(12_000, 1_001)

    assert charge.padded_bytes == 14_400 + 1_202
    assert charge.target_only.padded_bytes == 14_400
    assert required_for_load(charge, 500, 100) == 16_202


def test_a_hybrids_state_is_fixed_per_sequence() -> None:
    assert sequence_bytes(0, 151_000_000, 4096) == 151_000_000
    assert sequence_bytes(1000, 151_000_000, 4096) == 151_000_000 + 4_096_000


@pytest.mark.parametrize(
    ("reading", "usable", "ceiling"),
    [
        (machine(24, 16.1), 12.1, 12.1),
        (machine(24, None), 20, 20),
        (machine(24, 30), 20, 20),  # a system that promises more than there is
        (machine(24, 3), 0, 0),
        (machine(24, 8, active=12, cache=1, idle=12), 4, 17),
        (machine(24, 8, active=12, cache=1), 4, 5),  # what is loaded is at work: only the cache can go
        (machine(24, None, active=12, cache=1, idle=12), 7, 20),
        (machine(24, None, active=12, cache=1, idle=5), 7, 13),
        (machine(24, 20, active=12, idle=12), 8, 20),
        (machine(24, 0, active=30), 0, 0),
        (machine(3, 3), 0, 0),
    ],
)
def test_idle_models_count_for_the_ceiling_and_never_as_free(reading: Reading, usable: float, ceiling: float) -> None:
    assert usable_for_load(reading) == int(usable * GIB)
    assert ceiling_for_load(reading) == int(ceiling * GIB)


def test_loads_under_way_are_counted_before_any_reading_shows_them() -> None:
    reading = machine(32, 30)

    assert usable_for_load(reading, 10 * GIB) == 16 * GIB
    assert can_load(16 * GIB, reading, 10 * GIB)
    assert not can_load(16 * GIB + 1, reading, 10 * GIB)
    assert not eviction_can_reach(16 * GIB + 1, reading, 10 * GIB)


def test_the_last_gate_does_not_hold_a_loads_own_claim_against_it() -> None:
    """A 24 GiB machine would otherwise refuse every gpt-oss-20b after having claimed its room."""
    required, padded = 18 * GIB, 14 * GIB
    reading = machine(24, 22.1)

    assert not can_load(required, reading, outstanding_bytes=padded)
    assert fits_at_allocation(required, reading, outstanding_bytes=padded, own_claim_bytes=padded)
    assert not fits_at_allocation(required, reading, outstanding_bytes=padded + GIB, own_claim_bytes=padded)


@pytest.mark.parametrize(
    ("reading", "outstanding", "weights"),
    [
        (machine(24, 22.0), 0, 13.5),  # just below the padded 13.52 GiB of gpt-oss-20b
        (machine(24, 20.1), 0, 11.6),
        (machine(24, 24), 0, 15.5),
        (machine(24, 8, active=12, cache=1), 0, 12.5),  # its own memory can be evicted
        (machine(24, None, active=12), 0, 15.5),
        (machine(24, 24), 2, 13.5),
        (machine(8, 8), 0, 0),
    ],
)
def test_the_heartbeat_tells_weights_that_could_be_loaded(reading: Reading, outstanding: int, weights: float) -> None:
    headroom = int(4.5 * GIB)

    assert max_loadable_weight(reading, headroom, outstanding * GIB) == int(weights * GIB)


@pytest.mark.parametrize(
    ("reading", "headroom"),
    [
        (machine(24, 12, active=11.25), 5.25),
        (machine(24, 6, active=11.25), 2.5),  # the system has less than the cap allows
        (machine(24, None, active=11.25, cache=0.25), 5),
        (machine(24, 3, active=11.25), 0),
        (machine(24, 12, active=21), 0),
    ],
)
def test_what_keys_and_values_could_take_is_measured_after_a_load(reading: Reading, headroom: float) -> None:
    assert live_kv_headroom(reading, 7 * GIB // 2) == int(headroom * GIB)


def limited(reading: Reading, limit_gib: float) -> Reading:
    """As under the operator's memory_limit_gb."""
    return replace(reading, cap_bytes=int(limit_gib * GIB), machine_cap_bytes=reading.cap_bytes)


@pytest.mark.parametrize(
    ("reading", "usable", "ceiling"),
    [
        (limited(machine(32, 20), 10), 10, 10),  # others use 12 of 32: the limit bounds this provider, not them
        (limited(machine(32, 8), 10), 4, 4),
        (limited(machine(32, 20, active=6, idle=6), 10), 4, 10),
        (limited(machine(32, 20, active=6), 10), 4, 4),
        (limited(machine(32, None, active=6, idle=2), 10), 4, 6),
        (limited(machine(32, 20, active=12, idle=12), 10), 0, 10),
        (limited(machine(32, 32), 28), 28, 28),
    ],
)
def test_a_limit_bounds_this_provider_and_claims_nothing_of_the_others(
    reading: Reading, usable: float, ceiling: float
) -> None:
    assert usable_for_load(reading) == int(usable * GIB)
    assert ceiling_for_load(reading) == int(ceiling * GIB)


@settings(max_examples=examples(10_000))
@given(reading=readings(), outstanding=sizes)
def test_nothing_is_ever_negative_and_what_is_usable_is_within_the_ceiling(reading: Reading, outstanding: int) -> None:
    usable, ceiling = usable_for_load(reading, outstanding), ceiling_for_load(reading)

    assert 0 <= usable <= usable_for_load(reading) <= ceiling <= reading.cap_bytes
    assert 0 <= max_loadable_weight(reading, 0, outstanding) <= reading.cap_bytes
    assert 0 <= live_kv_headroom(reading, outstanding) <= reading.cap_bytes


@settings(max_examples=examples(10_000))
@given(reading=readings(), required=sizes, outstanding=sizes, more=sizes)
def test_more_memory_never_makes_it_worse(reading: Reading, required: int, outstanding: int, more: int) -> None:
    if reading.available_bytes is not None:
        roomier = replace(reading, available_bytes=reading.available_bytes + more)
        assert usable_for_load(roomier, outstanding) >= usable_for_load(reading, outstanding)
        assert ceiling_for_load(roomier) >= ceiling_for_load(reading)
        assert live_kv_headroom(roomier, 0) >= live_kv_headroom(reading, 0)
    if can_load(required, reading, outstanding):
        assert can_load(max(0, required - more), reading, outstanding)
        assert can_load(required, reading, max(0, outstanding - more))
        assert eviction_can_reach(required, reading, outstanding)
        assert fits_at_allocation(required, reading, outstanding, 0)


@settings(max_examples=examples(10_000))
@given(reading=readings(), required=sizes, others=sizes, own=sizes)
def test_an_own_claim_neither_helps_nor_hinders_at_allocation(
    reading: Reading, required: int, others: int, own: int
) -> None:
    assert fits_at_allocation(required, reading, others + own, own) == can_load(required, reading, others)
