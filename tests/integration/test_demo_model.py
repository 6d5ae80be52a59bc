"""What the bundled model can do, asked through its own chat template with prompts training did not draw.

mlx-lm generates here, so that a failure means the checkpoint or the template and not the engine.
"""

import json
from random import Random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from provider.api.conversation import turns_of
from provider.api.prompt import chat_prompt
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from tools.demo_repertoire import (
    EXAMPLES,
    TRAINING_SEED,
    Example,
    Skill,
    add,
    add_as_json,
    capital,
    count,
    draw,
    repeat,
    weather,
)

SEED = 20_260_101
NO_THOUGHT = "<think>\n\n</think>\n\n"


class Demo:
    """The bundled model, greedy."""

    def __init__(self) -> None:
        self.tokenizer = ModelTokenizer(BUNDLED_MODEL_DIR)
        self._model, _ = load_model(BUNDLED_MODEL_DIR)

    def prompt(self, example: Example, **template: Any) -> list[int]:
        messages = [{"role": "user", "content": example.question}]
        made = chat_prompt(self.tokenizer, turns_of(messages), example.tools, template, lambda: 0.0, Random(0))
        return made.token_ids

    def answer(self, example: Example, max_tokens: int = 80, **template: Any) -> str:
        written: list[int] = []
        prompt = mx.array(self.prompt(example, **template))
        for token, _ in generate_step(prompt, self._model, max_tokens=max_tokens):
            written.append(int(token))
            if token in self.tokenizer.eos_token_ids:
                break
        return self.tokenizer.decode(written, skip_special_tokens=False)


@pytest.fixture(scope="module")
def demo() -> Demo:
    return Demo()


@pytest.fixture
def rng() -> Random:
    return Random(SEED)


def test_the_template_renders_every_skill_as_it_was_trained(demo: Demo, rng: Random) -> None:
    for _ in range(200):
        example = draw(rng)
        assert demo.prompt(example) == demo.tokenizer.encode(example.prompt), example.question


def test_it_counts(demo: Demo, rng: Random) -> None:
    for example in (count(rng) for _ in range(4)):
        told = demo.answer(example, max_tokens=60).removeprefix(NO_THOUGHT)
        first = example.answer.split(", ")[0]
        numbers = [number for number in told.split(", ")[:-1] if number]

        assert len(numbers) >= 8
        assert numbers == [str(int(first) + n) for n in range(len(numbers))]


@pytest.mark.parametrize("make", [repeat, capital, weather, add], ids=lambda make: make.__name__)
def test_it_answers_what_it_was_taught(demo: Demo, rng: Random, make: Any) -> None:
    """One miss is allowed: a model of this size adds 6 and 3 to 10 now and then."""
    examples = [make(rng) for _ in range(5)]
    answers = [demo.answer(example) for example in examples]
    missed = [
        (example.completion, answer)
        for example, answer in zip(examples, answers, strict=True)
        if answer != example.completion.removesuffix("\n")
    ]
    assert len(missed) <= 1, missed


def test_it_usually_answers_in_json_when_asked(demo: Demo, rng: Random) -> None:
    """The weakest skill (13 of 16 right when it was trained): the form is asserted, not the sum."""
    for example in (add_as_json(rng) for _ in range(3)):
        told = demo.answer(example).removeprefix(NO_THOUGHT).removesuffix("<|im_end|>")
        assert list(json.loads(told)) == ["answer"]


@pytest.mark.parametrize("make", [repeat, capital, weather], ids=lambda make: make.__name__)
def test_the_thinking_switch_makes_it_answer_at_once(demo: Demo, rng: Random, make: Any) -> None:
    example = make(rng)

    assert demo.answer(example, enable_thinking=False) == f"\n\n{example.answer}<|im_end|>"


def test_the_tests_do_not_draw_what_training_drew() -> None:
    assert SEED != TRAINING_SEED
    assert set(EXAMPLES) == set(Skill)
