"""Sampling on the device: the distribution it draws from, what it cuts off, and what penalties do."""

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.backends.mlx.sampling import Sampler, sample
from provider.generation import Sampling
from provider.randomness import uniform
from tests.soak import examples

LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]
DRAWS = 4000


def probabilities(logits: list[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(one / temperature) for one in logits]
    return [one / sum(weights) for one in weights]


def draw(count: int, logits: list[float] = LOGITS, **fields: Any) -> Counter[int]:
    """`count` positions of one seeded sequence, all from the same logits."""
    sampler = Sampler.of(Sampling(seed=3, **fields), [], [])
    tokens = sample(mx.array([logits] * count), [(sampler, position) for position in range(count)])
    return Counter(tokens.tolist())


def expect(found: Counter[int], expected: dict[int, float]) -> None:
    """Within five standard deviations, and nothing outside the support."""
    total = sum(found.values())
    assert set(found) <= set(expected)
    for token, share in expected.items():
        deviation = math.sqrt(total * share * (1 - share))
        assert abs(found[token] - total * share) <= 5 * deviation + 1


def renormalised(kept: list[int], temperature: float = 1.0) -> dict[int, float]:
    shares = probabilities(LOGITS, temperature)
    return {token: shares[token] / sum(shares[one] for one in kept) for token in kept}


def test_greedy_takes_the_largest() -> None:
    assert draw(5, temperature=0) == {0: 5}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_plain_sampling_follows_the_softmax(temperature: float) -> None:
    expect(draw(DRAWS, temperature=temperature), renormalised(list(range(6)), temperature))


def test_top_k_keeps_the_k_likeliest() -> None:
    expect(draw(DRAWS, top_k=2), renormalised([0, 1]))


def test_top_k_one_is_greedy() -> None:
    assert set(draw(50, top_k=1)) == {0}


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    shares = probabilities(LOGITS)
    assert shares[0] < 0.7 < shares[0] + shares[1]
    expect(draw(DRAWS, top_p=0.7), renormalised([0, 1]))


def test_a_tiny_top_p_keeps_the_likeliest() -> None:
    assert set(draw(50, top_p=1e-6)) == {0}


def test_min_p_is_relative_to_the_likeliest() -> None:
    shares = probabilities(LOGITS)
    kept = [token for token, share in enumerate(shares) if share >= 0.2 * shares[0]]
    expect(draw(DRAWS, min_p=0.2), renormalised(kept))


def test_top_p_applies_to_what_top_k_left() -> None:
    shares = renormalised([0, 1, 2])
    assert shares[0] + shares[1] > 0.85 > probabilities(LOGITS)[0] + probabilities(LOGITS)[1]
    expect(draw(DRAWS, top_k=3, top_p=0.85), renormalised([0, 1]))


def one(logits: list[float], prompt: list[int], emitted: list[int], **fields: Any) -> int:
    sampler = Sampler.of(Sampling(temperature=0, **fields), prompt, emitted)
    return int(sample(mx.array([logits]), [(sampler, 0)]).item())  # type: ignore[arg-type]


def test_repetition_looks_at_prompt_and_output_and_shrinks_both_signs() -> None:
    assert one([2.0, 1.5], [0], [], repetition_penalty=2.0) == 1
    assert one([2.0, 1.5], [], [0], repetition_penalty=2.0) == 1
    assert one([-1.0, -1.5], [0], [], repetition_penalty=2.0) == 1
    assert one([2.0, 1.5], [1], [], repetition_penalty=2.0) == 0


def test_presence_and_frequency_look_at_the_output_alone() -> None:
    assert one([2.0, 1.5], [0], [], presence_penalty=1.0) == 0
    assert one([2.0, 1.5], [], [0], presence_penalty=1.0) == 1
    assert one([2.0, 1.5], [], [0], frequency_penalty=0.3) == 0
    assert one([2.0, 1.5], [], [0, 0], frequency_penalty=0.3) == 1


def test_logit_bias_is_added() -> None:
    assert one([2.0, 1.5], [], [], logit_bias={1: 1.0}) == 1
    assert one([2.0, 1.5], [], [], logit_bias={0: -100.0}) == 1


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    cold = [0.0, -math.inf, 0.0, -math.inf]
    assert set(draw(200, cold)) == {0, 2}
    assert set(draw(200, cold, top_k=4)) <= {0, 2}


KINDS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "top_k": st.sampled_from([0, 1, 3]),
        "top_p": st.sampled_from([1.0, 0.8, 0.2]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "seed": st.integers(0, 5),
    }
)


@settings(max_examples=examples(5_000), deadline=None)
@given(rows=st.lists(st.tuples(KINDS, st.integers(0, 50), st.integers(0, 10**6)), min_size=1, max_size=6))
def test_a_rows_token_does_not_depend_on_the_rows_beside_it(rows: list[Any]) -> None:
    logits = mx.stack([mx.random.normal((40,), key=mx.random.key(noise)) * 3 for _, _, noise in rows])
    draws = [(Sampler.of(Sampling(**kind), [], [1, 1, 2]), position) for kind, position, _ in rows]
    together = sample(logits, draws).tolist()
    alone = [sample(logits[i : i + 1], [draws[i]]).tolist()[0] for i in range(len(rows))]
    assert together == alone


def test_uniform_numbers_depend_on_seed_index_and_position_and_fill_the_interval() -> None:
    keys = [(seed, index, position) for seed in (0, 1, -1, 2**63) for index in (0, 1) for position in range(200)]
    numbers = [uniform(*key) for key in keys]
    assert numbers == [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert all(0 < one < 1 for one in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.05
