"""Drafts never change an answer: tokens and logits with them are those without, whatever was drafted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import mlx.core as mx
import numpy as np
import pytest

from provider.backends.base import BackendFacts, Row
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.block_cache import KV_BLOCK_TOKENS
from provider.backends.mlx.sampling import Sampler, sample
from provider.backends.sim import SimBackend
from provider.generation import Sampling
from tests.fixtures.backend_play import GREEDY, prefill, prompt_of, solo, staggered
from tests.fixtures.drafters import Rule, RuledDrafter, mostly_right, right, wrong, wrong_at_each
from tests.fixtures.family_models import write_family

SAMPLINGS = (
    GREEDY,
    Sampling(temperature=0.8, seed=7),
    Sampling(temperature=0.8, seed=3, top_k=40, top_p=0.9),
    Sampling(temperature=0.7, seed=5, repetition_penalty=1.3, presence_penalty=0.4, logit_bias={7: 1.5}),
    Sampling(temperature=0, frequency_penalty=0.8),
)
FOUR_BITS = {"group_size": 32, "bits": 4, "mode": "affine"}
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "dense float32": lambda to: write_family(to, "qwen3_5"),
    "dense bfloat16": lambda to: write_family(to, "qwen3_5", mx.bfloat16),
    "dense 4-bit": lambda to: write_family(to, "qwen3_5", quantize=FOUR_BITS),
    "experts float32": lambda to: write_family(to, "qwen3_5_moe"),
    "experts 4-bit": lambda to: write_family(to, "qwen3_5_moe", quantize=FOUR_BITS),
}
LENGTHS = (5, 40, 17, 32, 3, 2, 8, 21)
COUNTS = {str(n): 6 + 3 * n for n in range(len(LENGTHS))}
PROMPTS = {str(n): prompt_of(length, n) for n, length in enumerate(LENGTHS)}
SAMPLING = {id: SAMPLINGS[n % len(SAMPLINGS)] for n, id in enumerate(PROMPTS)}

Logits = dict[tuple[int, int], bytes]


class Recording:
    """Draws as the backend does, and keeps the logits that the last draw for a place was made from. A place is known
    by the sampling's identity, one per sequence, and the output position."""

    def __init__(self) -> None:
        self.logits: Logits = {}

    def __call__(self, logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> mx.array:
        rows = np.array(logits.astype(mx.float32))
        for row, (sampler, position) in zip(rows, draws, strict=True):
            self.logits[id(sampler.sampling), position] = row.tobytes()
        return sample(logits, draws)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("drafts"))


class Plain:
    """The answers without drafts, each alone, and the logits they were drawn from."""

    def __init__(self, directory: Path) -> None:
        recording = Recording()
        backend = MlxBackend(directory, draw=recording)
        self.tokens = {id: solo(backend, PROMPTS[id], COUNTS[id], SAMPLING[id]) for id in PROMPTS}
        self.logits: Logits = {}
        for id in PROMPTS:  # once more, one at a time, as the samplings are shared
            recording.logits.clear()
            solo(backend, PROMPTS[id], COUNTS[id], SAMPLING[id])
            self.logits |= {(int(id), place): row for (_, place), row in recording.logits.items()}
        backend.close()


@pytest.fixture(scope="module")
def plain(model: Path) -> Plain:
    return Plain(model)


@pytest.mark.parametrize("rule", [right, wrong, mostly_right], ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_eight_that_join_and_leave_draw_the_tokens_and_logits_they_draw_alone_without_drafts(
    model: Path, plain: Plain, depth: int, rule: Rule
) -> None:
    recording = Recording()
    drafter = RuledDrafter(plain.tokens, rule)
    backend = MlxBackend(model, drafter, recording)
    own = {id: Sampling(**{name: getattr(one, name) for name in one.__struct_fields__}) for id, one in SAMPLING.items()}
    random = Random(depth)
    got = staggered(
        backend, PROMPTS, COUNTS, sampling=own, drafts=lambda step, id: depth if step % 4 else random.randint(0, depth)
    )
    backend.close()
    assert got == plain.tokens
    assert drafter.asked > 0
    names = {id(one): int(name) for name, one in own.items()}
    drawn = {(names[key], place): row for (key, place), row in recording.logits.items() if key in names}
    assert {key: drawn[key] for key in plain.logits} == plain.logits


@pytest.mark.parametrize("place", range(4))
def test_a_draft_that_is_wrong_at_any_place_changes_nothing(model: Path, plain: Plain, place: int) -> None:
    id = "7"
    backend = MlxBackend(model, RuledDrafter({"solo": plain.tokens[id]}, wrong_at_each(place)))
    assert solo(backend, PROMPTS[id], COUNTS[id], SAMPLING[id], drafts=3) == plain.tokens[id]
    backend.close()


def test_a_sequence_computed_again_goes_on_with_drafts(model: Path, plain: Plain) -> None:
    id, drawn = "5", 9
    backend = MlxBackend(model, RuledDrafter({"again": plain.tokens[id][drawn - 1 :]}, mostly_right))
    tokens = plain.tokens[id][:drawn]
    backend.open("again", SAMPLING[id], PROMPTS[id], tokens)
    backend.prefill("again", PROMPTS[id] + tokens[:-1], None)
    while len(tokens) < COUNTS[id]:
        left = COUNTS[id] - len(tokens) - 1
        tokens = tokens + backend.decode([Row("again", tokens[-1], len(tokens), min(2, left))])[0].tokens
    backend.close()
    assert tokens == plain.tokens[id]


def test_drafts_that_cross_the_border_of_a_block_change_nothing(model: Path) -> None:
    """Wrong ones grow the keys and values by a block, and give it back."""
    backend = MlxBackend(model)
    prompt = prompt_of(KV_BLOCK_TOKENS - 6, 4)
    expected = solo(backend, prompt, 20)
    for rule in (wrong, mostly_right):
        drafting = MlxBackend(model, RuledDrafter({"solo": expected}, rule))
        assert solo(drafting, prompt, 20, drafts=5) == expected
        drafting.close()
    backend.close()


def test_right_drafts_take_fewer_steps_and_none_are_asked_for_beyond_the_end(model: Path, plain: Plain) -> None:
    id = "7"
    backend = MlxBackend(model, RuledDrafter({"a": plain.tokens[id]}, right))
    tokens = [prefill(backend, "a", PROMPTS[id], SAMPLING[id])]
    runs = []
    while len(tokens) < COUNTS[id]:
        drafts = min(3, COUNTS[id] - len(tokens) - 1)
        runs += backend.decode([Row("a", tokens[-1], len(tokens), drafts)])
        tokens += runs[-1].tokens
    backend.close()
    assert tokens == plain.tokens[id]
    assert [len(run.tokens) for run in runs] == [4] * 6 + [2]
    assert all(run.accepted == run.drafted for run in runs)


def test_memory_does_not_grow_with_the_rounds(model: Path, plain: Plain) -> None:
    backend = MlxBackend(model, RuledDrafter({"a": []}, wrong))
    tokens = [prefill(backend, "a", PROMPTS["1"])]
    held = []
    for _ in range(60):
        tokens += backend.decode([Row("a", tokens[-1], len(tokens), 3)])[0].tokens
        mx.synchronize()
        held.append(backend.memory().active_bytes)
    backend.close()
    assert max(held[20:]) <= max(held[:20])


def test_the_simulated_backend_draws_the_same_tokens_with_drafts() -> None:
    facts = BackendFacts("sim", 1024, 4096, 1000, 512, 1000, 256, max_drafts=3)
    plain = {id: solo(SimBackend(facts), PROMPTS[id], COUNTS[id], SAMPLING[id]) for id in PROMPTS}
    for depth in (1, 2, 3):
        backend = SimBackend(facts, acceptance=0.6)
        assert staggered(backend, PROMPTS, COUNTS, sampling=SAMPLING, drafts=lambda step, id, k=depth: k) == plain
