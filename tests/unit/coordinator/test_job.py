from datetime import UTC, datetime
from typing import Any

import pytest

from coordinator.job import Done, Job, Progress, outcome
from coordinator.store.records import JobOutcome
from provider.api.wire import Failure, internal_error, invalid_request, model_not_found, queue_full, unavailable
from provider.protocol import InferenceChunk

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def job(**body: Any) -> Job:
    return Job("j", 1, "/v1/completions", "demo", True, {"model": "demo", **body}, NOW)


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def sent(data: dict[str, Any], **counts: int) -> InferenceChunk:
    return InferenceChunk(request_id="j.1", seq=0, data=data, **counts)


def test_of_an_answer_that_breaks_off_the_tokens_delivered_are_billed_and_its_prompt() -> None:
    progress = Progress(attempts=1)
    progress.delivered(sent(chunk(content="a few"), prompt_tokens=40, completion_tokens=3))
    progress.delivered(sent(chunk(content=""), prompt_tokens=40, completion_tokens=5))
    usage = progress.bill(job(), None, NOW)
    assert (usage.outcome, usage.prompt_tokens, usage.completion_tokens) == (JobOutcome.CANCELLED, 40, 5)


def test_what_the_provider_counted_is_billed() -> None:
    progress = Progress(attempts=1, usage={"prompt_tokens": 7, "completion_tokens": 5})
    progress.delivered(sent(chunk(content="a")))
    usage = progress.bill(job(), Done(None), NOW)
    assert (usage.outcome, usage.prompt_tokens, usage.completion_tokens) == (JobOutcome.COMPLETED, 7, 5)


def test_without_a_count_what_was_delivered_is_billed() -> None:
    progress = Progress(attempts=1)
    odd: list[dict[str, Any]] = [chunk(role="assistant"), {"choices": None}, {"choices": ["?"]}, {}]
    for data in [*odd, chunk(content="a"), chunk(reasoning_content="b"), {"choices": [{"text": "c"}]}]:
        progress.delivered(sent(data))
    usage = progress.bill(job(), internal_error("lost", "provider_lost"), NOW)
    assert (usage.outcome, usage.code) == (JobOutcome.FAILED, "provider_lost")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.chunks) == (None, 3, 7)


@pytest.mark.parametrize("odd", [{"prompt_tokens": "7"}, {"prompt_tokens": -1}, {"prompt_tokens": 2**70}, {}])
def test_a_count_that_is_none_is_not_stored(odd: dict[str, Any]) -> None:
    assert Progress(attempts=1, usage=odd).bill(job(), Done(None), NOW).prompt_tokens is None


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (invalid_request("no"), JobOutcome.REFUSED),
        (model_not_found("m", []), JobOutcome.REFUSED),
        (queue_full("wait"), JobOutcome.FAILED),
        (unavailable("later"), JobOutcome.FAILED),
        (internal_error("lost"), JobOutcome.FAILED),
    ],
)
def test_a_request_at_fault_is_refused_and_has_not_failed(failure: Failure, expected: JobOutcome) -> None:
    assert outcome(failure) is expected


def test_a_client_that_went_away_has_cancelled() -> None:
    assert outcome(None) is JobOutcome.CANCELLED
