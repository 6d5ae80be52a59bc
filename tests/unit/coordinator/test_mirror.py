from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import fleet, mirror
from coordinator.fleet import Hold, ProviderView
from coordinator.mirror import ColdLoad, Reserve, TooLong
from provider.memory.caps import effective_cap, load_reserve
from provider.memory.floors import activation_reserve, shipped_table
from provider.memory.requirement import Charge, padded_weights, required_for_load
from provider.protocol import ModelAd
from tests.unit.coordinator.views import GIB, MODEL, TABLES, advert, memory, slot, view

GB = 10**9
OSS = "gpt-oss-20b"
NOTHING = {"activation_reserve_bytes": None, "free_for_load_bytes": None}


def machine(gib: int, *models: str, version: str = "0.9.0", **values: Any) -> ProviderView:
    """One that has not reported anything yet and advertises these."""
    hardware = view().hardware.model_copy(update={"memory_bytes": gib * GIB})
    ads = {model: advert(model) for model in models}
    return replace(view(), hardware=hardware, version=version, models=ads, memory=None, **values)


# -- the worked tiers of docs/memory.md

TIERS = [
    ("gpt-oss-20b alone", 24, 12.1, (OSS,), "0.9.0", 20.0, 18.02, True, 22.0),
    ("gpt-oss-20b before the table", 24, 12.1, (OSS,), "0.8.15", 20.0, 20.02, False, 24.0),
    ("gpt-oss-20b alone", 32, 12.1, (OSS,), "0.8.16", 28.0, 18.02, True, 22.0),
    ("gpt-oss-20b beside an unmeasured model", 32, 12.1, (OSS, "other"), "0.9.0", 28.0, 20.02, True, 24.0),
    ("qwen3.6-35b-a3b-vl-mtp-mxfp8", 32, 21.3, ("vl",), "0.9.0", 28.0, 30.30, False, 34.3),
    ("qwen3.6-35b-a3b-vl-mtp-mxfp8", 36, 21.3, ("vl",), "0.9.0", 32.0, 30.30, True, 34.3),
    ("gemma-4-26b-8bit", 36, 28.0, ("gemma",), "0.9.0", 32.0, 37.79, False, 41.8),
    ("qwen3-vl-30b", 32, 18.3, ("vl30",), "0.9.0", 28.0, 26.95, True, 31.0),
]


@pytest.mark.parametrize(("case", "gib", "gb", "served", "version", "cap", "required", "fits", "live"), TIERS)
def test_provider_and_mirror_agree_on_every_tier(
    case: str,
    gib: int,
    gb: float,
    served: tuple[str, ...],
    version: str,
    cap: float,
    required: float,
    fits: bool,
    live: float,
) -> None:
    # A rate so large that the whole minimum of 1 GiB counts, as for every model of ordinary size.
    ad = advert(served[0], size_bytes=int(gb * GB), kv_bytes_per_token=GIB)
    plan = mirror.plan(machine(gib, *served, version=version), ad, TABLES)
    assert plan.effective_cap_bytes == effective_cap(gib * GIB, 4 * GIB)
    reserve = activation_reserve(served if version >= "0.8.16" else (), shipped_table())
    assert plan.required_bytes == required_for_load(Charge(ad.size_bytes), reserve, GIB)
    assert plan.effective_cap_bytes / GIB == pytest.approx(cap, abs=0.005)
    assert plan.required_bytes / GIB == pytest.approx(required, abs=0.005)
    assert plan.fits is fits
    needed_free = plan.required_bytes + load_reserve(gib * GIB, plan.effective_cap_bytes)
    assert needed_free / GIB == pytest.approx(live, abs=0.06)


# -- whose reserve


@pytest.mark.parametrize(
    ("version", "models", "gib"),
    [
        ("", (OSS,), 3.0),
        ("0.7.9", (OSS,), 3.0),
        ("dev", (OSS,), 3.0),
        ("0.8.0", (OSS,), 5.5),
        ("0.8.15", (OSS,), 5.5),
        ("0.8.16-dev.3", (OSS,), 3.5),
        ("0.8.16", (OSS,), 3.5),
        ("v0.10.0+local", (OSS,), 3.5),
        ("0.9.0", (OSS, "unmeasured"), 5.5),
        ("0.9.0", (), 5.5),
        ("0.8.16", ("darkbloom-demo",), 5.5),
        ("0.9.0", ("darkbloom-demo",), TABLES.floors["darkbloom-demo"].floor_bytes / GIB),
        ("0.9.0", ("darkbloom-demo", OSS), 3.5),
    ],
)
def test_an_unreported_reserve_is_that_of_the_release(version: str, models: tuple[str, ...], gib: float) -> None:
    assert mirror.reserve(machine(24, *models, version=version), TABLES) == Reserve(int(gib * GIB), reported=False)


def test_a_model_that_sees_images_has_no_measured_floor_and_no_measured_weights() -> None:
    facts = {"size_bytes": 12_100_000_000, "kv_bytes_per_token": 400_000}
    seeing, blind = advert(OSS, vision=True, **facts), advert(OSS, **facts)
    seen = replace(machine(24), models={OSS: seeing})
    assert mirror.reserve(seen, TABLES) == Reserve(11 * GIB // 2, reported=False)
    cap = int(0.9 * 24 * GIB)
    assert mirror.token_budget(seen, seeing, TABLES) == (cap - 12_100_000_000 - 11 * GIB // 2) // 400_000
    assert mirror.token_budget(machine(24, OSS), blind, TABLES) == 17_716


def test_what_is_loaded_counts_as_what_is_advertised() -> None:
    seen = replace(machine(24, OSS), slots={"unmeasured": slot("unmeasured")})
    assert mirror.reserve(seen, TABLES).activation_reserve_bytes == 11 * GIB // 2


def test_a_reported_reserve_is_believed_for_what_is_served_and_raised_for_what_is_asked() -> None:
    seen = replace(machine(24, OSS), memory=memory(activation_reserve_bytes=GIB))
    assert mirror.reserve(seen, TABLES) == Reserve(GIB, reported=True)
    assert mirror.reserve(seen, TABLES, [OSS]) == Reserve(GIB, reported=True)
    assert mirror.reserve(seen, TABLES, ["unmeasured"]) == Reserve(11 * GIB // 2, reported=True)
    zero = replace(seen, memory=memory(activation_reserve_bytes=0))
    assert mirror.reserve(zero, TABLES) == Reserve(0, reported=True)


@pytest.mark.parametrize("bad", [None, -1, float("nan"), float("inf")])
def test_a_reserve_that_is_none_is_as_unreported(bad: float | None) -> None:
    seen = replace(machine(24, OSS), memory=memory(activation_reserve_bytes=bad))
    assert mirror.reserve(seen, TABLES) == Reserve(7 * GIB // 2, reported=False)


# -- cold loads

FREE = st.none() | st.integers(0, 2**62) | st.sampled_from(["invalid"])
SIZES = st.integers(1, 2**61)
SENT = st.integers(1, 2**53 - 1)


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (12_100_000_000, 14_520_000_000, ColdLoad.ADMITTED),
        (12_100_000_000, 14_519_999_999, ColdLoad.REFUSED),
        (1, 0, ColdLoad.REFUSED),
        (GIB, None, ColdLoad.UNKNOWN),
        (0, 4 * GIB, ColdLoad.UNKNOWN),
        (GIB, "invalid", ColdLoad.REFUSED),
        (0, "invalid", ColdLoad.REFUSED),
    ],
)
def test_a_cold_load_is_admitted_on_padded_weights(size: int, free: Any, verdict: ColdLoad) -> None:
    assert mirror.cold_admission(size, free) is verdict


@pytest.mark.parametrize("version", ["", "0.8.0", "0.8.16", "0.9.0"])
def test_measured_residency_admits_nothing_for_any_release(version: str) -> None:
    ad = advert(OSS, size_bytes=12_100_000_000)
    seen = replace(machine(24, OSS, version=version), memory=memory(free_for_load_bytes=23 * GIB // 2))
    assert mirror.cold_load(seen, ad) is ColdLoad.REFUSED


@given(SIZES, FREE)
def test_a_verdict_depends_on_nothing_else_and_is_the_providers_arithmetic(size: int, free: Any) -> None:
    verdict = mirror.cold_admission(size, free)
    assert verdict is mirror.cold_admission(size, free)
    assert (verdict is ColdLoad.ADMITTED) == (isinstance(free, int) and padded_weights(size) <= free)
    assert (verdict is ColdLoad.UNKNOWN) == (free is None)


@given(SIZES, st.integers(0, 2**61), FREE)
def test_more_weight_never_makes_an_admission_succeed(size: int, more: int, free: Any) -> None:
    if mirror.cold_admission(size + more, free) is ColdLoad.ADMITTED:
        assert mirror.cold_admission(size, free) is ColdLoad.ADMITTED


@given(SIZES, st.integers(0, 2**61), st.integers(0, 2**61))
def test_more_free_memory_never_makes_an_admission_fail(size: int, free: int, more: int) -> None:
    if mirror.cold_admission(size, free) is ColdLoad.ADMITTED:
        assert mirror.cold_admission(size, free + more) is ColdLoad.ADMITTED


@given(SENT, st.floats(max_value=-1e-300) | st.sampled_from([float("nan"), float("inf")]) | st.integers(max_value=-1))
def test_nothing_is_admitted_on_a_number_that_is_no_amount_of_memory(size: int, told: float) -> None:
    seen = replace(machine(24), memory=memory(free_for_load_bytes=told))
    assert mirror.cold_load(seen, advert(size_bytes=size)) is ColdLoad.REFUSED


# -- room for tokens


def test_the_room_after_a_load_counts_measured_weights_from_their_release_on() -> None:
    ad = advert(OSS, size_bytes=12_100_000_000, kv_bytes_per_token=400_000)
    cap = int(0.9 * 24 * GIB)
    new, old = machine(24, OSS), machine(24, OSS, version="0.8.15")
    assert mirror.token_budget(new, ad, TABLES) == (cap - 23 * GIB // 2 - 7 * GIB // 2) // 400_000 == 17_716
    assert mirror.token_budget(old, ad, TABLES) == (cap - 12_100_000_000 - 11 * GIB // 2) // 400_000


@pytest.mark.parametrize("lacking", ["size_bytes", "kv_bytes_per_token"])
def test_the_room_after_a_load_is_unknown_without_the_facts(lacking: str) -> None:
    assert mirror.token_budget(machine(24), advert(**{lacking: 0}), TABLES) is None
    assert mirror.token_budget(machine(0), advert(), TABLES) is None


@pytest.mark.parametrize(
    ("values", "budget"),
    [
        ({"tokens_max": 500}, 500),
        ({"state": "running", "tokens_max": 500, "kv_bytes_per_token": 9}, 500),
        ({"kv_bytes_per_token": 9}, 0),
        ({}, None),
        ({"state": "failed"}, None),
        ({"state": "failed", "kv_bytes_per_token": 9}, None),
    ],
)
def test_what_a_slot_reports_is_its_budget(values: dict[str, Any], budget: int | None) -> None:
    seen = replace(machine(24), slots={MODEL: slot(**values)})
    assert mirror.token_budget(seen, advert(), TABLES) == budget
    assert mirror.known_zero(seen.slots[MODEL]) is (budget == 0)


@pytest.mark.parametrize("state", ["loading", "unloading"])
def test_a_model_that_is_not_loaded_has_the_budget_it_would_have(state: str) -> None:
    seen = replace(machine(24), slots={MODEL: slot(state=state)})
    assert mirror.token_budget(seen, advert(), TABLES) == mirror.token_budget(machine(24), advert(), TABLES)
    assert not mirror.known_zero(seen.slots[MODEL])


def test_a_raised_cap_and_a_smaller_reserve_of_the_providers_own_give_more_room() -> None:
    ad = advert(kv_bytes_per_token=GIB)
    assert mirror.token_budget(machine(16), ad, TABLES) == 7
    roomy = replace(machine(16), memory=memory(effective_cap_bytes=15 * GIB, activation_reserve_bytes=GIB))
    assert mirror.token_budget(roomy, ad, TABLES) == 13
    cramped = replace(machine(16), memory=memory(effective_cap_bytes=2 * GIB, activation_reserve_bytes=9 * GIB))
    assert mirror.token_budget(cramped, ad, TABLES) == 7


@given(st.integers(0, 64 * GIB), st.integers(0, 64 * GIB), st.integers(0, 8 * GIB), st.integers(1, 2**20))
def test_weights_only_take_room(cap: int, weights: int, floor: int, rate: int) -> None:
    room = mirror.post_load_tokens(cap, weights, floor, rate)
    assert room >= 0
    assert mirror.post_load_tokens(cap, weights + GIB, floor, rate) <= room
    assert mirror.post_load_tokens(cap + GIB, weights, floor, rate) >= room


# -- who is full


@pytest.mark.parametrize(
    ("values", "holds", "crowded"),
    [
        ({"running": 3}, 1, False),
        ({"running": 3}, 2, True),
        ({"running": 4}, 1, True),
        ({"running": 0, "waiting": 4}, 0, True),
        ({"tokens_max": 100, "tokens_used": 60, "tokens_queued": 39}, 1, False),
        ({"tokens_max": 100, "tokens_used": 60, "tokens_queued": 40}, 1, True),
        ({"max_concurrency": 0}, 9, False),
    ],
)
def test_a_refusal_by_one_that_is_seen_to_be_full_is_no_wonder(
    values: dict[str, Any], holds: int, crowded: bool
) -> None:
    seen = replace(machine(24, MODEL), slots={MODEL: slot(**values)})
    for number in range(holds):
        seen = fleet.held(seen, f"j.{number}", Hold(MODEL, 1))
    seen = fleet.held(seen, "other", Hold("other", 1))
    assert mirror.crowded(seen, MODEL) is crowded
    assert not mirror.crowded(seen, "other")


# -- prompts


@pytest.mark.parametrize(
    ("values", "least", "verdict", "longest"),
    [
        ({"tokens_max": 500}, 500, None, 500),
        ({"tokens_max": 500}, 501, TooLong.PROMPT_TOO_LONG, 500),
        ({"tokens_max": 5000}, 4095, None, 4096),
        ({"tokens_max": 5000}, 4096, TooLong.CONTEXT_EXCEEDED, 4096),
        ({"tokens_max": 500}, 4096, TooLong.CONTEXT_EXCEEDED, 500),
        ({}, 4095, None, 4096),
        ({"kv_bytes_per_token": 9}, 4095, None, 4096),
        ({"kv_bytes_per_token": 9}, 4096, TooLong.CONTEXT_EXCEEDED, 4096),
    ],
)
def test_a_prompt_is_too_long_for_a_context_or_for_all_the_room_there_is(
    values: dict[str, Any], least: int, verdict: TooLong | None, longest: int
) -> None:
    seen = replace(machine(24), slots={MODEL: slot(**values)})
    assert mirror.too_long(least, seen, advert(), TABLES) is verdict
    assert mirror.longest_prompt(seen, advert(), TABLES) == longest


def test_a_model_that_is_not_loaded_would_have_the_least_room_of_any_load() -> None:
    """An estimate below it says that the load is in doubt, not that the prompt is."""
    ad = advert(size_bytes=8 * GIB, kv_bytes_per_token=2**18, context_length=10**6)
    seen = machine(16)
    assert mirror.token_budget(seen, ad, TABLES) == 3686
    assert mirror.too_long(4096, seen, ad, TABLES) is None
    assert mirror.too_long(4097, seen, ad, TABLES) is TooLong.PROMPT_TOO_LONG
    assert mirror.longest_prompt(seen, ad, TABLES) == 4096
    small = machine(12)
    assert mirror.token_budget(small, ad, TABLES) == 0
    assert mirror.too_long(10**5, small, ad, TABLES) is None
    roomy = replace(machine(32), slots={MODEL: slot(tokens_max=100)})
    assert mirror.too_long(101, roomy, ad, TABLES) is TooLong.PROMPT_TOO_LONG


def test_an_unknown_context_and_budget_hold_any_prompt() -> None:
    ad = advert(context_length=0, kv_bytes_per_token=0)
    assert mirror.too_long(10**9, machine(24), ad, TABLES) is None
    assert mirror.longest_prompt(machine(24), ad, TABLES) == 0


class Looked(dict[str, ModelAd]):
    """How often all of it was gone through."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()

    def values(self) -> Any:
        self.times += 1
        return super().values()


def test_what_is_asked_of_each_model_of_a_provider_does_not_go_through_all_of_them() -> None:
    models = Looked({f"m{one}": advert(f"m{one}") for one in range(50)})
    one = view("p", models=models)
    ads, known = list(models.values()), mirror.reserve(one, TABLES)
    for ad in ads:
        assert mirror.plan(one, ad, TABLES, known) == mirror.plan(one, ad, TABLES)
        assert mirror.token_budget(one, ad, TABLES, known) == mirror.token_budget(one, ad, TABLES)
    assert models.times > len(ads)
    models.times = 0
    for ad in ads:
        mirror.plan(one, ad, TABLES, known)
        mirror.token_budget(one, ad, TABLES, known)
        mirror.reserve_alone(one, ad, TABLES)
    assert models.times == 0
