"""How long a request is waited for: every frame renews its own deadline, and a park lasts no longer than it may."""

import pytest

from coordinator.config import Timings
from coordinator.patience import Patience
from provider.protocol import InferenceAccepted, InferenceChunk, InferenceNotice, NoticeKind

TIMINGS = Timings(accept_within_s=30, silence_s=600, longest_park_s=1800)
ACCEPTED = InferenceAccepted(request_id="a.1")
CHUNK = InferenceChunk(request_id="a.1", seq=0, data={})


class Waiting:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.patience = Patience(TIMINGS, lambda: self.now_s)

    def notice(self, kind: NoticeKind, after_s: float = 0.0) -> "Waiting":
        self.now_s += after_s
        self.patience.heard(InferenceNotice(request_id="a.1", seq=0, kind=kind))
        return self


def test_acceptance_is_waited_for_less_long_than_what_follows() -> None:
    waiting = Waiting()
    assert (waiting.patience.left_s, waiting.patience.failure().code) == (30, "provider_silent")
    waiting.patience.heard(ACCEPTED)
    assert (waiting.patience.left_s, waiting.patience.failure().code) == (600, "deadline_exceeded")


def test_keep_alives_renew_the_deadline_until_the_park_has_lasted_its_longest() -> None:
    waiting = Waiting().notice("preempted")
    for _ in range(13):
        waiting.notice("preempt-keepalive", after_s=100)
    assert (waiting.patience.left_s, waiting.patience.over) == (500, False)
    waiting.notice("preempt-keepalive", after_s=500)
    assert waiting.patience.over
    assert waiting.patience.failure().code == "parked_too_long"
    assert not waiting.patience.failure().retryable


@pytest.mark.parametrize("again", [False, True])
def test_a_chat_that_decodes_again_is_no_longer_timed_as_parked(again: bool) -> None:
    waiting = Waiting().notice("preempted").notice("resumed", after_s=1700)
    if again:
        waiting.notice("preempted")
    waiting.patience.heard(CHUNK)
    waiting.now_s += 200
    assert not waiting.patience.over
    assert waiting.patience.left_s == 600
