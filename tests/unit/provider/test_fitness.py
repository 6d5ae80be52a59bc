"""From the facts of a machine to a report, and from a report to words."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.findings import Status
from provider.fit_findings import FIT_CHECK, fit_findings, fit_object
from provider.fitness import Candidate, FitReport, MachineFacts, judge_fit
from provider.memory.caps import GIB
from provider.memory.fit import Fit, smallest_machine
from provider.memory.floors import shipped_table
from tests.fixtures.worked_tiers import Tier, worked_tiers
from tests.soak import examples

GPT_OSS = Candidate(id="gpt-oss-20b", size_bytes=12_100_000_000)
QWEN = Candidate(id="qwen3.6-35b-a3b-vl-mtp-mxfp8", size_bytes=21_300_000_000, vision=True)
QWEN_VL = Candidate(id="qwen3-vl-30b", size_bytes=18_300_000_000, vision=True)
DEMO = Candidate(id="darkbloom-demo", size_bytes=3_300_000, minimum_kv_bytes=20 * 2**20)
ALL = (GPT_OSS, QWEN, QWEN_VL, DEMO)


def machine(
    physical: float,
    available: float | None,
    target: Candidate,
    advertised: tuple[str, ...] | None = None,
    models: tuple[Candidate, ...] = ALL,
) -> MachineFacts:
    """In GiB, with the default reserve."""
    return MachineFacts(
        physical_bytes=int(physical * GIB),
        available_bytes=None if available is None else int(available * GIB),
        reserve_bytes=4 * GIB,
        advertised=advertised,
        models=models,
        target=target.id,
    )


def ids(report: FitReport) -> list[str]:
    return [one.id for one in report.alternatives]


def words(facts: MachineFacts) -> tuple[Status, str, str]:
    (finding,) = fit_findings([judge_fit(facts)], facts)
    assert finding.name == FIT_CHECK
    return finding.status, finding.message, finding.fix or ""


@pytest.mark.parametrize("tier", worked_tiers(), ids=str)
def test_every_worked_tier_is_judged_as_the_table_says(tier: Tier) -> None:
    target = Candidate(id=tier.model, size_bytes=tier.size_bytes)
    for free, verdict in ((tier.free + 0.01, Fit.PASS), (tier.free - 0.01, Fit.FAIL)):
        report = judge_fit(machine(tier.machine, free, target, tuple(tier.advertised), (target,)))

        assert report.required_bytes / GIB == pytest.approx(tier.required, abs=0.01)
        assert report.activation_reserve_bytes == int(tier.reserve * GIB)
        assert report.effective_cap_bytes / GIB == pytest.approx(tier.cap, abs=0.01)
        assert report.verdict is (verdict if tier.fits else Fit.FAIL)
        assert report.ever is tier.fits


@pytest.mark.parametrize(
    ("advertised", "reserve"),
    [(("gpt-oss-20b",), 3.5), (("gpt-oss-20b", "unmeasured"), 5.5), ((), 5.5), (None, 3.5)],
)
def test_declared_nothing_and_unknown_are_three_things(advertised: tuple[str, ...] | None, reserve: float) -> None:
    report = judge_fit(machine(32, 30, GPT_OSS, advertised))

    assert report.activation_reserve_bytes == int(reserve * GIB)


def test_a_resident_model_keeps_its_floor_also_where_nothing_is_declared() -> None:
    facts = replace(machine(32, 16, GPT_OSS), resident={"unmeasured": 12 * GIB}, active_bytes=12 * GIB)

    assert judge_fit(facts).activation_reserve_bytes == int(5.5 * GIB)


def test_a_model_that_sees_images_has_no_measured_floor() -> None:
    seeing = replace(GPT_OSS, vision=True)

    assert judge_fit(machine(32, 30, seeing, models=(seeing,))).activation_reserve_bytes == int(5.5 * GIB)
    # Nor does it leave one to the others.
    report = judge_fit(machine(32, 30, DEMO, ("darkbloom-demo", "gpt-oss-20b"), (DEMO, seeing)))
    assert report.activation_reserve_bytes == int(5.5 * GIB)


def test_the_environment_raises_the_reserve_of_every_model() -> None:
    facts = replace(machine(32, 30, GPT_OSS, ("gpt-oss-20b",)), told_reserve_bytes=8 * GIB)

    assert judge_fit(facts).activation_reserve_bytes == 8 * GIB


def test_alternatives_are_judged_at_their_own_floors_the_largest_first() -> None:
    report = judge_fit(machine(32, 32, QWEN, (QWEN.id,)))

    assert report.verdict is Fit.FAIL
    assert ids(report) == ["qwen3-vl-30b", "gpt-oss-20b", "darkbloom-demo"]
    needed = {one.id: one.required_bytes / GIB for one in report.alternatives}
    assert needed["gpt-oss-20b"] == pytest.approx(18.02, abs=0.01)
    assert needed["qwen3-vl-30b"] == pytest.approx(26.95, abs=0.01)
    assert needed["darkbloom-demo"] < 1


def test_an_alternative_is_judged_beside_what_would_still_be_served() -> None:
    report = judge_fit(machine(32, 32, QWEN, (QWEN.id, "unmeasured")))

    needed = {one.id: one.required_bytes / GIB for one in report.alternatives}
    assert needed["gpt-oss-20b"] == pytest.approx(20.02, abs=0.01)


def test_what_cannot_be_had_now_is_no_alternative() -> None:
    assert ids(judge_fit(machine(32, 24, QWEN, (QWEN.id,)))) == ["gpt-oss-20b", "darkbloom-demo"]
    assert ids(judge_fit(machine(32, 4, QWEN, (QWEN.id,)))) == []


def test_a_model_that_fits_has_no_alternatives() -> None:
    assert judge_fit(machine(64, 60, QWEN)).alternatives == ()


@pytest.mark.parametrize("advertised", [("gpt-oss-20b", "unmeasured"), ()])
def test_serving_it_alone_is_a_way_out_of_a_declared_set(advertised: tuple[str, ...]) -> None:
    facts = machine(24, 24, GPT_OSS, advertised, (GPT_OSS,))
    status, message, fix = words(facts)

    assert status is Status.FAIL
    assert message.startswith("RAM is too small for gpt-oss-20b (needs 20.02 GiB)")
    assert "gpt-oss-20b alone, when it needs 18.02 GiB" in fix


def test_nobody_is_told_to_serve_less_on_evidence_that_is_not_there() -> None:
    """Nothing is declared: the resident model may be all that somebody wants."""
    resident = {"unmeasured": 2 * GIB}
    facts = replace(machine(24, 22, GPT_OSS, None, (GPT_OSS,)), resident=resident, active_bytes=2 * GIB)
    report = judge_fit(facts)

    assert report.verdict is Fit.FAIL
    assert report.alone_bytes is None
    assert "alone" not in words(facts)[2]


def test_a_machine_that_is_too_small_is_said_once_for_all_models() -> None:
    reports = [judge_fit(machine(24, 24, one, ("qwen3.6-35b-a3b-vl-mtp-mxfp8", "qwen3-vl-30b"))) for one in ALL[1:3]]
    (finding,) = fit_findings(reports, machine(24, 24, QWEN))

    assert finding.message.count("RAM is too small") == 1
    assert QWEN.id in finding.message
    assert QWEN_VL.id in finding.message


def test_the_largest_models_that_would_fit_are_named() -> None:
    status, message, fix = words(machine(32, 32, QWEN, (QWEN.id,)))

    assert (status, message) == (
        Status.FAIL,
        "RAM is too small for qwen3.6-35b-a3b-vl-mtp-mxfp8 (needs 30.30 GiB): models may take 28.00 GiB of 32.00 GiB.",
    )
    assert fix.startswith("Serve one that fits: qwen3-vl-30b (needs 26.95 GiB), gpt-oss-20b (needs 18.02 GiB), dark")


def test_without_an_alternative_the_size_that_would_fit_is_named() -> None:
    assert "at most 17.92 GiB of weights" in words(machine(32, 32, QWEN, (QWEN.id,), (QWEN,)))[2]
    assert "on a larger machine" in words(machine(8, 5, GPT_OSS, None, (GPT_OSS,)))[2]


def test_a_busy_machine_is_told_how_much_to_free() -> None:
    """16.1 GiB of 24 are free or reclaimable: the machine is large enough, and other programs have the rest."""
    status, message, fix = words(machine(24, 16.1, GPT_OSS, ("gpt-oss-20b",), (GPT_OSS,)))

    assert status is Status.FAIL
    assert "needs 18.02 GiB, and no more than 12.10 GiB" in message
    assert fix.startswith("Close other programs to free 5.92 GiB more, or ")


def test_idle_models_turn_a_fail_into_a_warning_and_never_into_a_pass() -> None:
    idle = {"idle": 12 * GIB}
    busy = replace(machine(32, 10, GPT_OSS, ("gpt-oss-20b",), (GPT_OSS,)), active_bytes=12 * GIB)
    facts = replace(busy, resident=idle, cache_bytes=3 * GIB, floors={**shipped_table(), "idle": GIB})
    status, message, fix = words(facts)

    assert judge_fit(busy).verdict is Fit.FAIL
    assert (status, judge_fit(facts).verdict) == (Status.WARN, Fit.WARN)
    assert (
        message == "gpt-oss-20b needs 18.02 GiB; 6.00 GiB usable now, and 21.00 GiB once what is idle has been evicted."
    )
    assert "Unload them (idle)" in fix


def test_a_model_that_fits_needs_no_fix() -> None:
    assert words(machine(32, 30, GPT_OSS)) == (Status.PASS, "gpt-oss-20b needs 18.02 GiB; 26.00 GiB usable.", "")


def test_a_report_is_the_object_that_is_documented() -> None:
    report = judge_fit(machine(32, 24, QWEN, (QWEN.id,), (QWEN, GPT_OSS)))

    assert fit_object(report) == {
        "target": QWEN.id,
        "required_bytes": 25_560_000_000 + 13 * GIB // 2,
        "usable_bytes": 20 * GIB,
        "ceiling_bytes": 20 * GIB,
        "activation_reserve_bytes": 11 * GIB // 2,
        "effective_cap_bytes": 28 * GIB,
        "verdict": "fail",
        "alternatives": [
            {"id": "gpt-oss-20b", "size_bytes": 12_100_000_000, "required_bytes": 14_520_000_000 + 9 * GIB // 2}
        ],
    }


def test_the_bundled_model_fits_on_a_machine_of_8_gib_with_5_available() -> None:
    """What `make up` needs: 4 GiB are the operator's, so that one is left for the model."""
    report = judge_fit(machine(8, 5, DEMO, ("darkbloom-demo",)))

    assert report.verdict is Fit.PASS
    assert report.usable_bytes == GIB
    assert report.required_bytes < GIB


@pytest.mark.parametrize(
    ("size_gb", "reserve", "gib", "tight"),
    [
        (12.1, 3.5, 24, True),
        (15.6, 5.5, 32, False),
        (18.3, 5.5, 32, True),
        (20.9, 5.5, 36, False),
        (21.3, 5.5, 36, True),
        (28.0, 5.5, 48, False),
        (0.003, 0.25, 8, False),
        (300.0, 5.5, 512, False),
    ],
)
def test_the_smallest_machine_that_serves_a_model(size_gb: float, reserve: float, gib: int, tight: bool) -> None:
    required = int(size_gb * 1.2 * 10**9 + (reserve + 1) * GIB)
    found = smallest_machine(required)

    assert found is not None
    assert (found.size_gib, found.tight) == (gib, tight)


@pytest.mark.parametrize(
    ("required", "gib", "tight"),
    [(20 * GIB, 24, True), (20 * GIB + 1, 32, False), (18 * GIB, 24, True), (18 * GIB - 1, 24, False)],
)
def test_what_just_fits_fits_and_what_leaves_two_gib_is_tight(required: int, gib: int, tight: bool) -> None:
    found = smallest_machine(required)

    assert found is not None
    assert (found.size_gib, found.tight) == (gib, tight)


def test_a_model_may_be_too_large_for_every_machine() -> None:
    assert smallest_machine(600 * GIB) is None


@settings(max_examples=examples(5000), deadline=None)
@given(
    physical=st.integers(0, 2**38),
    available=st.none() | st.integers(0, 2**38),
    active=st.integers(0, 2**38),
    resident=st.dictionaries(st.sampled_from(["gpt-oss-20b", "unmeasured"]), st.integers(0, 2**38)),
    advertised=st.none() | st.lists(st.sampled_from([one.id for one in ALL])).map(tuple),
    target=st.sampled_from(ALL),
    told=st.none() | st.integers(1, 2**34),
)
def test_any_machine_gets_a_report_that_agrees_with_itself(
    physical: int,
    available: int | None,
    active: int,
    resident: dict[str, int],
    advertised: tuple[str, ...] | None,
    target: Candidate,
    told: int | None,
) -> None:
    facts = replace(
        machine(1, 1, target, advertised),
        physical_bytes=physical,
        available_bytes=available,
        active_bytes=active,
        resident=resident,
        told_reserve_bytes=told,
    )
    report = judge_fit(facts)

    assert 0 <= report.usable_bytes <= report.ceiling_bytes <= report.effective_cap_bytes
    assert (report.verdict is Fit.PASS) == (report.required_bytes <= report.usable_bytes)
    assert (report.verdict is Fit.FAIL) == (report.required_bytes > report.ceiling_bytes)
    assert report.ever or report.verdict is Fit.FAIL
    assert report.activation_reserve_bytes >= (told or 0)
    assert all(one.required_bytes <= report.ceiling_bytes for one in report.alternatives)
    assert [one.size_bytes for one in report.alternatives] == sorted(
        (one.size_bytes for one in report.alternatives), reverse=True
    )
    (finding,) = fit_findings([report], facts)
    assert finding.status.value == report.verdict.value
    assert bool(finding.fix) == (report.verdict is not Fit.PASS)
