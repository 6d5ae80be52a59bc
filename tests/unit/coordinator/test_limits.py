from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import limits
from coordinator.api.limited import rate_headers
from coordinator.limits import Exceeded, RateLimits
from coordinator.store.records import KeyLimits, Token, TokenKind
from tests.soak import examples


def key(id: int = 1, **values: int) -> Token:
    return Token(id, TokenKind.API, "one", datetime(2026, 1, 1, tzinfo=UTC), limits=KeyLimits(**values))  # type: ignore[arg-type]


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.limits = RateLimits(lambda: self.now)
        self.jobs = 0

    def ask(self, token: Token, tokens: int = 0) -> Exceeded | None:
        self.jobs += 1
        return self.limits.admit(token, f"j{self.jobs}", tokens)


def test_a_key_without_limits_is_always_admitted() -> None:
    scene = Scene()
    assert {scene.ask(key(), 10**9) for _ in range(100)} == {None}


def test_a_minutes_requests_may_come_at_once_and_then_at_their_rate() -> None:
    scene, token = Scene(), key(requests_per_minute=6)
    assert [scene.ask(token) for _ in range(6)] == [None] * 6
    assert scene.ask(token) == Exceeded("requests_per_minute", 6, 10)
    scene.now = 9.5
    assert scene.ask(token) == Exceeded("requests_per_minute", 6, 1)
    scene.now = 10
    assert scene.ask(token) is None
    assert scene.ask(token) is not None
    scene.now = 1000
    assert [scene.ask(token) for _ in range(7)].count(None) == 6


def test_what_was_foreseen_is_replaced_by_what_was_used() -> None:
    scene, token = Scene(), key(tokens_per_minute=600)
    assert scene.ask(token, 500) is None
    assert scene.ask(token, 200) == Exceeded("tokens_per_minute", 600, 10)
    scene.limits.settle("j1", 100)
    scene.limits.settle("j1", 0)
    assert scene.ask(token, 501) is not None
    assert scene.ask(token, 500) is None
    scene.limits.settle(f"j{scene.jobs}", 1100)
    assert scene.ask(token, 1) == Exceeded("tokens_per_minute", 600, 61)
    scene.now = 61
    assert scene.ask(token, 1) is None


def test_a_job_larger_than_a_minute_is_admitted_by_a_full_bucket() -> None:
    scene, token = Scene(), key(tokens_per_minute=60)
    assert scene.ask(token, 1000) is None
    assert scene.ask(token, 1) is not None
    scene.now = 60
    assert scene.ask(token, 1000) is None


def test_a_refused_request_takes_nothing() -> None:
    scene, token = Scene(), key(requests_per_minute=2, tokens_per_minute=60)
    assert scene.ask(token, 60) is None
    assert scene.ask(token, 10) == Exceeded("tokens_per_minute", 60, 10)
    scene.limits.settle("j1", 0)
    assert scene.ask(token, 10) is None
    assert scene.ask(token, 10) == Exceeded("requests_per_minute", 2, 30)


def test_keys_do_not_share_their_buckets_and_a_lowered_limit_holds_at_once() -> None:
    scene = Scene()
    assert scene.ask(key(1, requests_per_minute=1)) is None
    assert scene.ask(key(1, requests_per_minute=1)) is not None
    assert scene.ask(key(2, requests_per_minute=100)) is None
    assert [scene.ask(key(2, requests_per_minute=3)) for _ in range(9)].count(None) == 3


def test_buckets_that_are_full_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUCKETS", 4)
    scene = Scene()
    for id in range(4):
        assert scene.ask(key(id, tokens_per_minute=10), 10) is None
    scene.limits.settle("j1", 1000)
    scene.now = 61
    assert scene.ask(key(9, tokens_per_minute=10), 1) is None
    assert len(scene.limits._buckets) == 2
    assert scene.ask(key(0, tokens_per_minute=10), 1) is not None


@settings(max_examples=examples(5000))
@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 80), st.integers(0, 80)), max_size=60),
)
def test_over_any_time_no_more_is_admitted_than_a_bucket_and_its_filling(
    per_minute: int, asked: list[tuple[float, int, int]]
) -> None:
    """Tokens as they were used, with the last job's surplus beyond; and a refusal's Retry-After is enough."""
    scene, token = Scene(), key(tokens_per_minute=per_minute)
    used = 0
    for pause, foreseen, really in asked:
        scene.now += pause
        before = used
        exceeded = scene.ask(token, foreseen)
        if exceeded is not None:
            scene.now += exceeded.retry_after_s + 1e-6
            assert scene.ask(token, foreseen) is None
        scene.limits.settle(f"j{scene.jobs}", really)
        used += really
        assert before <= per_minute * (1 + scene.now / 60) + 1e-3


def test_what_is_left_and_when_all_of_it_will_be_there_again_is_told() -> None:
    scene = Scene()
    assert scene.limits.standings(key()) == []
    token = key(requests_per_minute=6, tokens_per_minute=600)
    assert [(one.remaining, one.reset_s) for one in scene.limits.standings(token)] == [(6, 0), (600, 0)]
    scene.ask(token, 450)
    told = rate_headers(scene.limits.standings(token))
    assert told == {
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "5",
        "x-ratelimit-reset-requests": "10s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "150",
        "x-ratelimit-reset-tokens": "45s",
    }
    scene.limits.settle("j1", 1500)
    scene.now = 9.75
    told = rate_headers(scene.limits.standings(token))
    assert (told["x-ratelimit-remaining-tokens"], told["x-ratelimit-reset-tokens"]) == ("0", "2m20.25s")
    assert (told["x-ratelimit-remaining-requests"], told["x-ratelimit-reset-requests"]) == ("5", "250ms")
    scene.now = 1000
    assert rate_headers(scene.limits.standings(token))["x-ratelimit-reset-tokens"] == "0ms"
