"""From what two servers did, round by round, to what drafting gains."""

from typing import Any

import pytest

from provider.bench.client import BenchError
from provider.bench.drafting import Drafting, read_drafting
from provider.bench.mtp_gain import Measured, Side, gains_of

NOTHING = Drafting(active=False, reason="kill_switch_disabled")
COUNTS: dict[str, Any] = {
    "rounds": 10,
    "drafted": [10, 4],
    "accepted": [9, 2],
    "draft_s": 0.02,
    "verify_s": 0.08,
    "bookkeeping_s": 0.005,
    "parked_s": 0.25,
}
SAID: dict[str, Any] = {"active": True, "reason": None, "drafted": COUNTS}


def drafted(*counts: int, accepted: tuple[int, ...], seconds: float = 0.0) -> Drafting:
    return Drafting(
        active=True,
        reason=None,
        rounds=counts[0],
        drafted=counts,
        accepted=accepted,
        draft_s=seconds,
        verify_s=2 * seconds,
        bookkeeping_s=3 * seconds,
        parked_s=4 * seconds,
    )


def test_what_a_server_says_is_read_of_the_model_that_was_asked_for() -> None:
    props = {"models": [{"id": "other", "mtp": {"active": False}}, {"id": "m", "mtp": SAID}]}
    found = read_drafting(props, "m")

    assert (found.active, found.rounds, found.drafted, found.accepted) == (True, 10, (10, 4), (9, 2))
    assert (found.draft_s, found.verify_s, found.bookkeeping_s, found.parked_s) == (0.02, 0.08, 0.005, 0.25)


def test_a_server_that_does_not_draft_says_why() -> None:
    said = {"active": False, "reason": "kill_switch_disabled", "drafted": None}

    assert read_drafting({"models": [{"id": "m", "mtp": said}]}, "m") == NOTHING


@pytest.mark.parametrize("props", [{}, {"models": []}, {"models": [{"id": "m"}]}, {"models": [{"id": "m", "mtp": {}}]}])
def test_a_server_that_says_nothing_of_it_cannot_be_measured(props: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="does not say what m has drafted"):
        read_drafting(props, "m")


def test_what_came_after_a_moment_is_the_difference() -> None:
    before, after = drafted(10, accepted=(9,), seconds=5.0), drafted(30, 4, accepted=(26, 1), seconds=8.0)
    since = after.since(before)

    assert (since.rounds, since.drafted, since.accepted) == (20, (20, 4), (17, 1))
    assert (since.draft_s, since.verify_s, since.bookkeeping_s, since.parked_s) == (3.0, 6.0, 9.0, 12.0)
    assert since.acceptance == (17 / 20, 1 / 4)


def test_a_depth_at_which_nothing_was_drafted_has_no_acceptance() -> None:
    assert drafted(8, 0, accepted=(4, 0)).acceptance == (0.5,)
    assert NOTHING.acceptance == ()


def test_ratios_are_of_one_round_and_the_median_is_reported() -> None:
    """The machine was three times as slow in the second round: no ratio shows it."""
    rounds = [(100.0, 120.0), (30.0, 45.0), (100.0, 110.0)]
    measured = [
        one
        for plain, drafting in rounds
        for one in (
            Measured(Side.PLAIN, 1, plain, NOTHING),
            Measured(Side.DRAFTING, 1, drafting, drafted(50, 10, accepted=(40, 5), seconds=0.5)),
        )
    ]
    (gain,) = gains_of(measured)

    assert gain.ratios == pytest.approx((1.2, 1.5, 1.1))
    assert gain.ratio == pytest.approx(1.2)
    assert (gain.plain_tokens_per_s, gain.drafting_tokens_per_s) == (100.0, 110.0)
    assert (gain.drafted, gain.accepted, gain.acceptance) == ((150, 30), (120, 15), (0.8, 0.5))
    assert (gain.draft_ms, gain.verify_ms, gain.bookkeeping_ms) == (10.0, 20.0, 30.0)
    assert gain.parked_s == 6.0


def test_each_number_of_streams_has_its_own_figures_in_order() -> None:
    measured = [
        Measured(side, streams, rate * streams, NOTHING)
        for streams in (8, 1)
        for side, rate in ((Side.DRAFTING, 3.0), (Side.PLAIN, 2.0))
    ]
    one, eight = gains_of(measured)

    assert (one.streams, eight.streams) == (1, 8)
    assert one.ratio == eight.ratio == 1.5
    assert one.draft_ms is None


def test_only_the_kill_switch_tells_the_servers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKBLOOM_MTP", "off")

    assert "DARKBLOOM_MTP" not in Side.DRAFTING.environment
    assert Side.PLAIN.environment == {**Side.DRAFTING.environment, "DARKBLOOM_MTP": "0"}
