"""What a failure says of its provider, and what is told of it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from coordinator import blame
from coordinator.endings import broken, failed
from coordinator.inbox import Broken
from coordinator.job import Job
from provider.api.wire import Failure, internal_error, invalid_request, queue_full, unavailable
from provider.protocol import InferenceError

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}]}


def job(key: int = 1, **values: Any) -> Job:
    return Job("j", key, "/v1/chat/completions", "m", False, {**BODY, **values}, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("failure", "faulty"),
    [
        (internal_error("x"), True),
        (internal_error("x", "worker_died"), True),
        (broken(Broken.PROVIDER_LOST), True),
        (broken(Broken.SEQUENCE_GAP), True),
        (broken(Broken.MALFORMED), True),
        (unavailable("x", "provider_silent"), True),
        (Failure(504, "internal_error", "deadline_exceeded", "x"), True),
        (internal_error("x", "answer_too_large"), False),
        (internal_error("x", "chat_template_error"), False),
        (invalid_request("x"), False),
        (queue_full("x"), False),
        (unavailable("x", "slot_state"), False),
        (broken(Broken.SLOW_CLIENT), False),
        (broken(Broken.STOPPING), False),
    ],
)
def test_what_counts_against_a_provider(failure: Failure, faulty: bool) -> None:
    assert blame.at_fault(failure) is faulty


def test_a_request_that_is_sent_again_is_known_and_another_is_told_apart() -> None:
    died = internal_error("x")
    once = blame.witness(job(), died, 1)
    assert once == blame.witness(replace(job(stream=True, seed=7, user="u"), id="k"), died, 2)
    others = [job(2), job(top_k=3), job(messages=[]), replace(job(), endpoint="/v1/messages")]
    assert len({once, *(blame.witness(one, died, 1) for one in others)}) == 1 + len(others)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert blame.witness(job(messages=deep), died, 1).key == 1
    lost = broken(Broken.PROVIDER_LOST)
    assert blame.witness(job(), lost, 1) == blame.witness(job(2, top_k=3), lost, 1) != blame.witness(job(), lost, 2)


def test_a_providers_words_make_no_new_label() -> None:
    told = [blame.retry_kind(internal_error("x", code)) for code in ("worker_died", "malformed_frame", "made up", "")]
    assert told == ["worker_died", "malformed_frame", "unnamed", "unnamed"]


@pytest.mark.parametrize(("wait", "told"), [(7, 7), (0, 0), (-1, 2), (2**53 - 1, 2), ("7", 2), (None, 2)])
def test_a_provider_may_ask_for_an_hours_patience_and_no_more(wait: object, told: int) -> None:
    frame = InferenceError(
        request_id="j.1",
        seq=0,
        status=503,
        code="c",
        message="m",
        retryable=True,
        detail={"retry_after_s": wait},
    )
    assert failed(frame).retry_after_s == told
