"""Loads: lengths as they are told, arrivals as their process says, the same for the same seed."""

import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.bench.load import (
    ClosedLoop,
    Fixed,
    Lengths,
    Listed,
    OpenLoop,
    Uniform,
    parse_lengths,
    plan_load,
    poisson_times_s,
)
from provider.bench.prompts import ORDINARY_IDS, TokenIds, Words
from provider.errors import ConfigError

counts = st.integers(1, 5000)
seeds = st.integers(0, 2**32)
specs: st.SearchStrategy[Lengths] = st.one_of(
    counts.map(Fixed),
    st.tuples(counts, counts).map(lambda ends: Uniform(min(ends), max(ends))),
    st.lists(counts, min_size=2, max_size=5).map(lambda some: Listed(tuple(some))),
)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("128", Fixed(128)),
        ("32-512", Uniform(32, 512)),
        ("7-7", Uniform(7, 7)),
        ("16,64,1500", Listed((16, 64, 1500))),
        ("16, 64", Listed((16, 64))),
    ],
)
def test_lengths_are_read(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "-3", "3-", "1.5", "many", "9-3", "1,,2", "1-2-3", "0-5", "²"])
def test_what_is_no_length_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"32-512"):
        parse_lengths(text)


@settings(deadline=None)
@given(requests=st.integers(1, 50), prompt=specs, output=specs, seed=seeds)
def test_a_load_is_its_seeds_alone(requests: int, prompt: Lengths, output: Lengths, seed: int) -> None:
    load = plan_load(ClosedLoop(4), requests, prompt, output, seed)
    assert load == plan_load(ClosedLoop(4), requests, prompt, output, seed)
    assert [one.number for one in load.requests] == list(range(requests))
    for one in load.requests:
        assert _possible(one.prompt_tokens, one.number, prompt)
        assert _possible(one.output_tokens, one.number, output)


def _possible(tokens: int, number: int, lengths: Lengths) -> bool:
    match lengths:
        case Fixed(fixed):
            return tokens == fixed
        case Uniform(low, high):
            return low <= tokens <= high
        case Listed(listed):
            return tokens == listed[number % len(listed)]


@settings(deadline=None)
@given(rate=st.floats(0.01, 1000), requests=st.integers(1, 50), seed=seeds)
def test_open_arrivals_begin_at_once_and_never_go_back(rate: float, requests: int, seed: int) -> None:
    load = plan_load(OpenLoop(rate), requests, Fixed(1), Fixed(1), seed)
    times = load.times_s()
    assert len(times) == requests
    assert times[0] == 0
    assert list(times) == sorted(times)
    assert times == load.times_s()


def test_poisson_gaps_have_the_mean_and_the_spread_of_their_rate() -> None:
    times = poisson_times_s(4.0, 20_000, random.Random(1))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.03)


def test_a_closed_loop_has_no_times() -> None:
    with pytest.raises(ValueError, match="closed loop"):
        plan_load(ClosedLoop(1), 1, Fixed(1), Fixed(1), 0).times_s()


def test_prompts_are_as_long_as_asked_and_all_different() -> None:
    load = plan_load(ClosedLoop(8), 200, Uniform(32, 512), Fixed(64), seed=5)
    ids = [TokenIds().make(one.prompt_tokens, one.seed) for one in load.requests]
    assert [len(one) for one in ids] == [one.prompt_tokens for one in load.requests]
    assert all(id in ORDINARY_IDS for one in ids for id in one)
    assert len({tuple(one[:16]) for one in ids}) == 200
    texts = [Words(2.5).make(one.prompt_tokens, one.seed) for one in load.requests]
    assert len({text[:16] for text in texts}) == 200
    assert [len(text.split()) for text in texts] == [round(one.prompt_tokens / 2.5) for one in load.requests]
