"""From digests to what doctor says of exactness."""

from dataclasses import replace

from provider.exact.policy import Condition
from provider.exact_findings import ExactFacts, Tried, exact_object, judge_exact
from provider.findings import Status

SAME = tuple(Tried(one, "a") for one in Condition)
SOUND = ExactFacts(model="m", device="d", adversary=False, lane_rows=8, tried=SAME)
HOSTILE = replace(SOUND, adversary=True, without=(Tried(Condition.ALONE, "a"), Tried(Condition.BESIDE, "b")))


def with_digest(condition: Condition, digest: str) -> tuple[Tried, ...]:
    return tuple(Tried(one.condition, digest) if one.condition is condition else one for one in SAME)


def test_one_digest_passes() -> None:
    [finding] = judge_exact(SOUND)
    assert (finding.status, finding.fix) == (Status.PASS, None)
    assert "lanes of 8 rows" in finding.message
    assert exact_object(SOUND) == {
        "model": "m",
        "device": "d",
        "adversary": False,
        "lane_rows": 8,
        "lane_rows_from": None,
        "reason": None,
        "conditions": [{"name": one.value, "digest": "a"} for one in Condition],
        "without": [],
        "verdict": "pass",
    }


def test_another_digest_fails_with_the_condition_and_the_setting_that_would_work() -> None:
    for condition, setting in ((Condition.PARKED, "exact off"), (Condition.DRAFTED, "mtp_mode off")):
        facts = replace(SOUND, tried=with_digest(condition, "b"))
        [finding] = judge_exact(facts)
        assert finding.status is Status.FAIL
        assert finding.message.endswith(f"when it is {condition}.")
        assert setting in (finding.fix or "")
        assert exact_object(facts)["verdict"] == "fail"


def test_what_cannot_be_exact_fails_with_its_reason() -> None:
    facts = replace(SOUND, lane_rows=None, tried=(), reason="its experts are sorted: serve it with exact off")
    [finding] = judge_exact(facts)
    assert finding.status is Status.FAIL
    assert "its experts are sorted" in finding.message
    assert exact_object(facts)["verdict"] == "fail"


def test_an_adversary_has_to_bite() -> None:
    assert [one.status for one in judge_exact(HOSTILE)] == [Status.PASS, Status.PASS]
    toothless = replace(HOSTILE, without=SAME)
    assert [one.status for one in judge_exact(toothless)] == [Status.PASS, Status.FAIL]
    assert exact_object(toothless)["verdict"] == "fail"


def test_a_condition_that_did_not_come_about_is_no_evidence() -> None:
    undrafted = replace(SOUND, tried=(*SAME[:-1], replace(SAME[-1], shown=False)))
    [verdict, finding] = judge_exact(undrafted)
    assert (verdict.status, finding.status) == (Status.PASS, Status.WARN)
    assert "drafted" in finding.message
    assert exact_object(undrafted)["verdict"] == "pass"
