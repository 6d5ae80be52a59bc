"""Reports: percentiles, rates over the right window, and rows that cannot be true, left out by name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.bench.report import Answer, Unanswered, impossible, percentile, report

TRUE = Answer(
    number=1, asked_tokens=4, sent_s=10.0, arrivals_s=(10.5, 10.6, 10.7, 10.8), done_s=10.9, prompt_tokens=30,
    output_tokens=4, counted="usage", finish_reason="length",
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([3.0], 99, 3.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 0, 1.0),
        ([4.0, 1.0, 3.0, 2.0], 100, 4.0),
        ([float(n) for n in range(101)], 90, 90.0),
    ],
)
def test_percentiles(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


@settings(deadline=None)
@given(values=st.lists(st.floats(0, 1e6), min_size=1), percent=st.floats(0, 100))
def test_a_percentile_lies_among_its_values(values: list[float], percent: float) -> None:
    assert min(values) <= percentile(values, percent) <= max(values) * (1 + 1e-12)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"output_tokens": 5}, "5 tokens came where 4 were asked for"),
    ({"arrivals_s": (10.5, 10.4, 10.7, 10.8)}, "backwards"),
    ({"sent_s": 10.55}, "backwards"),
    ({"done_s": 10.75}, "backwards"),
    ({"arrivals_s": ()}, "no tokens"),
    ({"output_tokens": 0}, "no tokens"),
    ({"arrivals_s": (10.8, 10.8, 10.8, 10.800001)}, "arrived at once"),
    ({"sent_s": 10.8, "arrivals_s": (10.80001,), "done_s": 10.80002}, "next to no time"),
]


@pytest.mark.parametrize(("fields", "reason"), IMPOSSIBLE)
def test_a_row_that_cannot_be_true_is_left_out_and_named(fields: dict[str, Any], reason: str) -> None:
    row = replace(TRUE, number=7, **fields)
    found = report([TRUE, row])
    (rejected,) = found.rejected
    assert rejected.number == 7
    assert reason in rejected.reason
    assert (found.requests, found.answered, found.output_tokens) == (2, 1, 4)
    assert found == replace(report([TRUE]), requests=2, rejected=(rejected,))


def test_rates_are_over_all_streams_from_the_first_request_to_the_last_answer() -> None:
    other = replace(TRUE, number=2, sent_s=10.2, done_s=11.0)
    found = report([TRUE, other, Unanswered(3, "status 503")])
    assert found.duration_s == pytest.approx(1.0)
    assert found.tokens_per_s == pytest.approx(8.0)
    assert found.requests_per_s == pytest.approx(2.0)
    assert found.prompt_tokens == 60
    assert (found.requests, found.answered, found.unanswered) == (3, 2, (Unanswered(3, "status 503"),))
    assert found.ttft_ms is not None
    assert found.ttft_ms.p50 == pytest.approx(400)
    assert found.inter_token_ms is not None
    assert found.inter_token_ms.p99 == pytest.approx(100)
    assert found.time_per_output_token_ms is not None
    assert found.time_per_output_token_ms.mean == pytest.approx(100)
    assert found.latency_ms is not None
    assert found.latency_ms.p50 == pytest.approx(850)


def test_an_answer_that_stopped_early_counts_what_it_gave() -> None:
    found = report([replace(TRUE, asked_tokens=64, finish_reason="stop")])
    assert (found.stopped_early, found.output_tokens) == (1, 4)


def test_one_token_has_a_first_and_no_gap() -> None:
    found = report([replace(TRUE, output_tokens=1, arrivals_s=(10.5,))])
    assert found.ttft_ms is not None
    assert found.inter_token_ms is None
    assert found.time_per_output_token_ms is None


def test_nothing_answered_is_nothing_measured() -> None:
    found = report([Unanswered(0, "refused")])
    assert (found.answered, found.duration_s, found.tokens_per_s, found.ttft_ms) == (0, None, None, None)


def test_prompt_tokens_are_unknown_when_one_answer_does_not_say() -> None:
    assert report([TRUE, replace(TRUE, prompt_tokens=None)]).prompt_tokens is None


moments = st.floats(0, 100)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.builds(
            Answer,
            number=st.integers(0, 99),
            asked_tokens=st.integers(1, 10),
            sent_s=moments,
            arrivals_s=st.lists(moments, max_size=6).map(tuple),
            done_s=moments,
            prompt_tokens=st.none() | st.integers(1, 100),
            output_tokens=st.integers(0, 12),
            counted=st.just("usage"),
            finish_reason=st.none(),
        ),
        max_size=5,
    )
)
def test_whatever_is_heard_no_impossible_number_is_reported(rows: list[Answer]) -> None:
    found = report(rows)
    assert found.answered + len(found.rejected) == len(rows)
    assert found.answered == sum(impossible(row) is None for row in rows)
    for spread in (found.ttft_ms, found.inter_token_ms, found.time_per_output_token_ms, found.latency_ms):
        assert spread is None or 0 <= spread.p50 <= spread.p90 <= spread.p99
    assert found.tokens_per_s is None or 0 < found.tokens_per_s <= 1e5 * max(1, found.answered)
