"""Every served family on a tiny random model: against mlx-lm's generator, in batches, in splits, and its facts."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from provider.backends.mlx.backend import MlxBackend
from provider.models.checkpoint import read_checkpoint
from provider.models.families import FAMILIES
from tests.fixtures.backend_play import prompt_of, solo, staggered
from tests.fixtures.family_models import OWN, WINDOW, write_family
from tests.integration.slots import ask, collect, demo_slot

PROMPTS = {str(seed): prompt_of(length, seed) for seed, length in enumerate([3, WINDOW - 2, 70, 41])}
COUNTS = {id: 10 + 4 * n for n, id in enumerate(PROMPTS)}
PACKED = {"bits": 4, "group_size": 32}
CASES = [(family, None) for family in OWN] + [("qwen3_5_moe", PACKED), ("gpt_oss", {**PACKED, "mode": "mxfp4"})]


@dataclass(frozen=True, slots=True)
class Served:
    directory: Path
    backend: MlxBackend


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{'packed' if case[1] else 'float32'}")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    family, quantize = request.param
    directory = write_family(tmp_path_factory.mktemp(family), family, quantize=quantize)
    backend = MlxBackend(directory)
    yield Served(directory, backend)
    backend.close()


def mlx_lm_tokens(directory: Path, prompt: list[int], count: int) -> list[int]:
    model, _ = load_model(directory)
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count)]


def test_every_served_family_is_asked_here() -> None:
    assert OWN.keys() == FAMILIES.keys()


def test_tokens_equal_mlx_lms_generator(served: Served) -> None:
    for id, prompt in PROMPTS.items():
        assert solo(served.backend, prompt, COUNTS[id]) == mlx_lm_tokens(served.directory, prompt, COUNTS[id])


def test_rows_that_join_and_leave_get_the_tokens_they_get_alone(served: Served) -> None:
    alone = {id: solo(served.backend, prompt, COUNTS[id]) for id, prompt in PROMPTS.items()}
    assert staggered(served.backend, PROMPTS, COUNTS, cuts=[1]) == alone


@pytest.mark.parametrize("cuts", [[1], [WINDOW - 1], [30, 31, 32, 50], list(range(1, 70))])
def test_any_split_of_the_prompt_gives_the_same_tokens(served: Served, cuts: list[int]) -> None:
    prompt = PROMPTS["2"]
    assert solo(served.backend, prompt, 8, cuts=cuts) == solo(served.backend, prompt, 8)


def test_the_files_tell_what_the_loaded_model_costs(served: Served) -> None:
    told, facts = read_checkpoint(served.directory), served.backend.facts
    assert (told.kv_bytes_per_token, told.state_bytes) == (facts.kv_bytes_per_token, facts.state_bytes)
    assert (told.vocab_size, told.context_length) == (facts.vocab_size, facts.context_length)
    assert told.size_bytes == facts.weight_bytes


def test_a_worker_answers_with_the_tokens_the_backend_draws(tmp_path: Path) -> None:
    directory = write_family(tmp_path, "llama")
    request = ask("Count to three.", "one", max_tokens=12)

    async def play() -> tuple[str, list[int], int]:
        async with demo_slot(directory=directory) as slot:
            text, tokens, end = await collect(slot, request)
            return text, tokens, end.completion_tokens

    text, tokens, counted = asyncio.run(play())
    backend = MlxBackend(directory)
    assert tokens == solo(backend, request.prompt, 12)
    backend.close()
    assert text
    assert counted == 12
