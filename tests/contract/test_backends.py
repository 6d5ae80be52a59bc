"""What every backend promises (provider.backends.base), asked of each of them alike."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from provider.backends.base import Backend, BackendFacts, Row
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.ingredients import in_lanes
from provider.backends.sim import SimBackend
from provider.generation import Sampling
from tests.fixtures.backend_play import GREEDY, prefill, prompt_of, solo
from tests.fixtures.family_models import write_family
from tests.soak import SOAK

SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=11)
PENALISED = Sampling(
    temperature=0.7, seed=5, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, logit_bias={7: 1.5}
)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}
FACTS = BackendFacts("sim", 1024, 4096, 1000, 512, 1000, 256)


FAMILIES = ("qwen3_5 in 4 bits", "llama", "gpt_oss", "qwen3_5_moe", "qwen3_5_moe in lanes")
MODELS = ("sim", "bfloat16", "float32", *(("4bit",) if SOAK else ()), *FAMILIES)
"""The simulated backend, the bundled model in every dtype, and families: full and sliding attention, experts; and one
in exact mode."""
PACKED = {"group_size": 32, "bits": 4, "mode": "affine"}


@pytest.fixture(scope="module", params=MODELS)
def backend(
    request: pytest.FixtureRequest, variants: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    made: Backend
    if request.param == "sim":
        made = SimBackend(FACTS)
    elif request.param in variants:
        made = MlxBackend(variants[request.param])
    else:
        family, _, how = request.param.partition(" ")
        quantize = PACKED if how == "in 4 bits" else None
        made = mlx = MlxBackend(write_family(tmp_path_factory.mktemp("family"), family, quantize=quantize))
        if how == "in lanes":
            mlx.decode_in_lanes(in_lanes(4, 4, mlx.aside))
    yield made
    made.close()


@pytest.mark.parametrize("cuts", [[16], [1], [3, 4, 37], list(range(1, 40))])
def test_any_split_of_the_prompt_gives_the_same_tokens(backend: Backend, cuts: list[int]) -> None:
    prompt = prompt_of(40, seed=1)
    assert solo(backend, prompt, 6, cuts=cuts) == solo(backend, prompt, 6)


def test_a_sequence_grows_past_its_first_block(backend: Backend) -> None:
    prompt = prompt_of(250, seed=2)
    assert solo(backend, prompt, 12, cuts=[128]) == solo(backend, prompt, 12)


@pytest.mark.parametrize("company", [["greedy", "sampled"], ["greedy", "penalised", "sampled"]])
def test_rows_joining_and_leaving_at_odd_times_get_the_tokens_they_get_alone(
    backend: Backend, company: list[str]
) -> None:
    """Two joining at once now and then, some leaving early, the next step begun ahead in two of three."""
    prompts = {str(n): prompt_of(length, n) for n, length in enumerate([5, 40, 17, 32, 3, 2, 8])}
    counts = {id: 3 + 2 * n for n, id in enumerate(prompts)}
    sampling = {id: SAMPLINGS[company[n % len(company)]] for n, id in enumerate(prompts)}
    expected = {id: solo(backend, prompt, counts[id], sampling[id]) for id, prompt in prompts.items()}
    waiting, got, step = list(prompts), dict[str, list[int]](), 0
    while waiting or any(len(got[id]) < counts[id] for id in got):
        for id in waiting[: 1 + step % 2]:
            waiting.remove(id)
            got[id] = [prefill(backend, id, prompts[id], sampling[id], [1])]
        rows = [Row(id, tokens[-1], len(tokens)) for id, tokens in got.items() if len(tokens) < counts[id]]
        step += 1
        for row, run in zip(rows, backend.decode(rows[::-1], ahead=step % 3 > 0)[::-1], strict=True):
            got[row.id] += run.tokens
            if len(got[row.id]) == counts[row.id]:
                backend.release(row.id)
    assert got == expected


def test_an_id_released_under_way_and_used_again_begins_anew(backend: Backend) -> None:
    first, other, again = prompt_of(12, 1), prompt_of(9, 2), prompt_of(20, 3)
    expected = solo(backend, again, 4), solo(backend, other, 6)
    tokens = [prefill(backend, "a", first)]
    others = [prefill(backend, "b", other)]
    for token, run in zip(
        (tokens, others), backend.decode([Row("a", tokens[0], 1), Row("b", others[0], 1)], ahead=True), strict=True
    ):
        token += run.tokens
    backend.release("a")
    tokens = [prefill(backend, "a", again)]
    while len(tokens) < 4:
        drawn = backend.decode([Row("b", others[-1], len(others)), Row("a", tokens[-1], len(tokens))], ahead=True)
        others += drawn[0].tokens
        tokens += drawn[1].tokens
    others += backend.decode([Row("b", others[-1], len(others)), Row("a", tokens[-1], len(tokens))])[0].tokens
    backend.release("a")
    backend.release("b")
    assert (tokens, others) == expected


def test_a_recomputed_sequence_goes_on_as_if_never_dropped(backend: Backend) -> None:
    prompt = prompt_of(40, seed=3)
    for sampling in SAMPLINGS.values():
        whole = solo(backend, prompt, 20, sampling)
        backend.open("again", sampling, prompt, whole[:9])
        assert backend.prefill("again", prompt + whole[:8], None) is None
        tokens = whole[:9]
        while len(tokens) < 20:
            tokens += backend.decode([Row("again", tokens[-1], len(tokens))])[0].tokens
        backend.release("again")
        assert tokens == whole


def test_a_row_whose_token_is_known_is_fed_it_and_draws_nothing(backend: Backend) -> None:
    """Beside one that draws; penalties have counted what is known before."""
    prompt, expected = prompt_of(21, 4), solo(backend, prompt_of(21, 4), 14, PENALISED)
    drawn, others = 8, [prefill(backend, "other", prompt_of(6, 5))]
    backend.open("again", PENALISED, prompt, expected[:drawn])
    assert backend.prefill("again", prompt, None) is None
    tokens = expected[:drawn]
    for position in range(1, 14):
        known = expected[position] if position < drawn else None
        row = Row("again", expected[position - 1], position, known=known)
        run, other = backend.decode([row, Row("other", others[-1], position)], ahead=True)
        others += other.tokens
        assert known is None or run.tokens == [known]
        tokens += run.tokens if known is None else []
    for id in ("again", "other"):
        backend.release(id)
    assert tokens == expected
    assert others == solo(backend, prompt_of(6, 5), 14)


def test_a_different_seed_or_index_gives_different_tokens(backend: Backend) -> None:
    prompt = prompt_of(30, seed=4)
    asked = [Sampling(seed=1), Sampling(seed=2), Sampling(seed=1, index=1)]
    drawn = [tuple(solo(backend, prompt, 12, one)) for one in asked]
    assert len(set(drawn)) == 3
    assert tuple(solo(backend, prompt, 12, asked[0])) == drawn[0]


def test_release_gives_the_memory_back_and_ignores_unknown_ids(backend: Backend) -> None:
    solo(backend, prompt_of(20, 1), 3)
    mx.synchronize()
    mx.clear_cache()  # an array may be given a cached buffer of up to twice its size
    before = backend.memory().active_bytes
    facts = backend.facts
    prefill(backend, "one", prompt_of(260, 5), cuts=[255])
    held = backend.memory().active_bytes - before
    blocks = -(-260 // facts.block_tokens)
    expected = facts.state_bytes + blocks * facts.block_tokens * facts.kv_bytes_per_token
    assert expected <= held <= expected * 1.02 + 4096
    backend.release("one")
    backend.release("one")
    backend.release("never opened")
    assert abs(backend.memory().active_bytes - before) <= 4096
