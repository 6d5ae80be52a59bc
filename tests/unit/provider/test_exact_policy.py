"""Who is served in exact mode, as a table."""

import pytest

from provider.exact.policy import Code, Condition, Decision, Found, Mode, Off, On, Unavailable, decide

SOUND = Found(lanes=True, lane_rows=8)

UNSOUND = {
    Code.BACKEND_UNSUPPORTED: Found(lanes=False),
    Code.EXPERTS_SORTED: Found(lanes=True, experts_per_token=64),
    Code.CHECK_FAILED: Found(lanes=True, lane_rows=8, failure="out of memory"),
    Code.CHECK_DIFFERS: Found(lanes=True, lane_rows=8, differing=[Condition.PARKED, Condition.DRAFTED]),
}


@pytest.mark.parametrize(
    ("mode", "found", "decision"),
    [("off", SOUND, Off()), ("auto", SOUND, On(8)), ("on", SOUND, On(8)), ("off", UNSOUND[Code.CHECK_DIFFERS], Off())],
)
def test_the_mode_and_what_was_found_decide(mode: Mode, found: Found, decision: Decision) -> None:
    assert decide(mode, found) == decision


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_every_reason_has_its_code_and_names_the_setting_that_would_work(mode: Mode, code: Code) -> None:
    decision = decide(mode, UNSOUND[code])
    assert isinstance(decision, Unavailable)
    assert decision.code is code
    assert decision.reason.endswith("exact off")
    assert decision.remedy == "--exact off"


def test_what_differs_is_named() -> None:
    decision = decide("on", UNSOUND[Code.CHECK_DIFFERS])
    assert isinstance(decision, Unavailable)
    assert "parked, drafted" in decision.reason


def test_where_only_drafts_differ_the_setting_is_drafting() -> None:
    decision = decide("auto", Found(lanes=True, lane_rows=4, differing=[Condition.DRAFTED]))
    assert isinstance(decision, Unavailable)
    assert decision.reason.endswith("mtp_mode off")
    assert decision.remedy == "--mtp-mode off"
