"""What doctor says where a provider gets no traffic."""

import pytest

from coordinator.reasons import Reason
from provider.findings import Status
from provider.fleet_findings import BUSY, ROUTABLE_FIXES, judge_links
from provider.running import Linked, Unroutable


def linked(connected: bool = True, reason: str = "", routable: tuple[str, ...] = (), *unroutable: Unroutable) -> Linked:
    return Linked("ws://c", connected, reason, routable, unroutable)


@pytest.mark.parametrize("reason", ["memory_cap", "circuit_open", "a_reason_of_a_newer_coordinator"])
def test_a_coordinator_that_sends_nothing_is_told_with_its_reason(reason: str) -> None:
    (found,) = judge_links((linked(True, "", (), Unroutable("ws://c", "m", reason, "9 GiB")),))
    assert (found.name, found.status) == ("routable", Status.WARN)
    assert found.message == f"ws://c sends no requests for m: {reason} (9 GiB)."
    assert found.fix


def test_models_that_get_requests_are_named_beside_one_that_does_not() -> None:
    refused, taken = judge_links((linked(True, "", ("a", "b"), Unroutable("ws://c", "m", "slot_failed", "")),))
    assert (taken.status, taken.message) == (Status.PASS, "ws://c sends requests for a, b.")
    assert (refused.status, refused.message) == (Status.WARN, "ws://c sends no requests for m: slot_failed.")


@pytest.mark.parametrize("reason", sorted(BUSY))
def test_having_much_to_do_is_no_fault(reason: str) -> None:
    (found,) = judge_links((linked(True, "", (), Unroutable("ws://c", "m", reason, "4 of 4")),))
    assert (found.status, found.fix) == (Status.PASS, None)
    assert f"for the moment: {reason} (4 of 4)" in found.message


@pytest.mark.parametrize(
    ("reason", "said"), [("", "ws://c is not connected."), ("gone", "ws://c is not connected: gone.")]
)
def test_a_coordinator_that_is_away_is_told_and_what_it_said_before_is_not(reason: str, said: str) -> None:
    (found,) = judge_links((linked(False, reason, ("a",), Unroutable("ws://c", "m", "memory_cap", "")),))
    assert (found.name, found.status, found.message) == ("coordinator link", Status.WARN, said)


def test_every_fix_is_for_a_reason_that_a_coordinator_gives() -> None:
    assert ROUTABLE_FIXES.keys() | BUSY <= {one.value for one in Reason}


def test_nothing_is_said_of_what_was_not_told() -> None:
    assert not list(judge_links((linked(),)))
    assert not list(judge_links(()))
