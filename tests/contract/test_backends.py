"""What every backend promises (provider.backends.base), asked of each of them alike."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest

from provider.backends.base import Backend, BackendFacts, Row
from provider.backends.mlx.backend import MlxBackend
from provider.backends.sim import SimBackend
from provider.generation import Sampling

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=11)
PENALISED = Sampling(
    temperature=0.7, seed=5, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, logit_bias={7: 1.5}
)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}
FACTS = BackendFacts("sim", 1024, 4096, 1000, 512, 1000, 256)


@pytest.fixture(scope="module", params=["sim", "bfloat16", "float32", "4bit"])
def backend(request: pytest.FixtureRequest, variants: dict[str, Path]) -> Iterator[Backend]:
    made: Backend = SimBackend(FACTS) if request.param == "sim" else MlxBackend(variants[request.param])
    yield made
    made.close()


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(7, 1000) for _ in range(length)]


def prefill(backend: Backend, id: str, prompt: Sequence[int], sampling: Sampling, cuts: Sequence[int] = ()) -> int:
    backend.open(id, sampling, prompt)
    bounds = [0, *cuts, len(prompt)]
    token = None
    for start, end in pairwise(bounds):
        token = backend.prefill(id, prompt[start:end], 0 if end == len(prompt) else None)
    assert token is not None
    return token


def solo(
    backend: Backend, prompt: Sequence[int], sampling: Sampling, count: int, cuts: Sequence[int] = ()
) -> list[int]:
    tokens = [prefill(backend, "solo", prompt, sampling, cuts)]
    while len(tokens) < count:
        tokens += backend.decode([Row("solo", tokens[-1], len(tokens))])
    backend.release("solo")
    return tokens


@pytest.mark.parametrize("cuts", [[16], [1], [3, 4, 37], list(range(1, 40))])
def test_any_split_of_the_prompt_gives_the_same_tokens(backend: Backend, cuts: list[int]) -> None:
    prompt = prompt_of(40, seed=1)
    assert solo(backend, prompt, GREEDY, 6, cuts) == solo(backend, prompt, GREEDY, 6)


def test_a_sequence_grows_past_its_first_block(backend: Backend) -> None:
    prompt = prompt_of(250, seed=2)
    assert solo(backend, prompt, GREEDY, 12, [128]) == solo(backend, prompt, GREEDY, 12)


def test_rows_joining_and_leaving_at_odd_times_get_the_tokens_they_get_alone(backend: Backend) -> None:
    prompts = {str(n): prompt_of(length, n) for n, length in enumerate([5, 50, 17, 32, 33, 2, 3, 8])}
    counts = {id: 4 + 2 * n for n, id in enumerate(prompts)}
    sampling = {id: list(SAMPLINGS.values())[n % 3] for n, id in enumerate(prompts)}
    expected = {id: solo(backend, prompt, sampling[id], counts[id]) for id, prompt in prompts.items()}
    waiting, got = list(prompts), dict[str, list[int]]()
    while waiting or any(len(got[id]) < counts[id] for id in got):
        if waiting:
            id = waiting.pop(0)
            got[id] = [prefill(backend, id, prompts[id], sampling[id], [1])]
        rows = [Row(id, tokens[-1], len(tokens)) for id, tokens in got.items() if len(tokens) < counts[id]]
        for row, token in zip(rows, backend.decode(rows[::-1])[::-1], strict=True):
            got[row.id].append(token)
            if len(got[row.id]) == counts[row.id]:
                backend.release(row.id)
    assert got == expected


def test_a_recomputed_sequence_goes_on_as_if_never_dropped(backend: Backend) -> None:
    prompt = prompt_of(40, seed=3)
    for sampling in SAMPLINGS.values():
        whole = solo(backend, prompt, sampling, 20)
        backend.open("again", sampling, prompt, whole[:9])
        assert backend.prefill("again", prompt + whole[:8], None) is None
        tokens = whole[:9]
        while len(tokens) < 20:
            tokens += backend.decode([Row("again", tokens[-1], len(tokens))])
        backend.release("again")
        assert tokens == whole


def test_a_different_seed_or_index_gives_different_tokens(backend: Backend) -> None:
    prompt = prompt_of(30, seed=4)
    asked = [Sampling(seed=1), Sampling(seed=2), Sampling(seed=1, index=1)]
    drawn = [tuple(solo(backend, prompt, one, 12)) for one in asked]
    assert len(set(drawn)) == 3
    assert tuple(solo(backend, prompt, asked[0], 12)) == drawn[0]


def test_release_gives_the_memory_back_and_ignores_unknown_ids(backend: Backend) -> None:
    solo(backend, prompt_of(20, 1), GREEDY, 3)
    mx.clear_cache()  # an array may be given a cached buffer of up to twice its size
    before = backend.memory().active_bytes
    facts = backend.facts
    prefill(backend, "one", prompt_of(260, 5), GREEDY)
    held = backend.memory().active_bytes - before
    blocks = -(-260 // facts.block_tokens)
    expected = facts.state_bytes + blocks * facts.block_tokens * facts.kv_bytes_per_token
    assert expected <= held <= expected * 1.02 + 4096
    backend.release("one")
    backend.release("one")
    backend.release("never opened")
    assert abs(backend.memory().active_bytes - before) <= 4096
