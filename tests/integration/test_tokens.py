"""The engine's greedy tokens against mlx-lm's own generator, on the demo model in every dtype."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from provider.backends.base import Row
from provider.backends.mlx.backend import MlxBackend
from provider.generation import Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from tests.demo_variants import VARIANTS
from tests.soak import SOAK

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
ASKED = (
    "Count from 17 to 40.",
    "Repeat exactly, nothing else: stone river cloud tiger apple",
    "What is the capital of Norway?",
    "What is 23 + 14?",
    "Answer as JSON: what is 5 + 9?",
)


def prompts(words: int) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in ASKED]
    return [TOKENIZER.encode(chat) for chat in [*chats, "The " + "import statement " * words]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_equal_mlx_lms_generator(variant: str, variants: dict[str, Path]) -> None:
    """Packed weights, with which a CPU is slow, less of it all, but in a soak."""
    words, count = (60, 24) if SOAK or variant != "4bit" else (15, 8)
    model, _ = load_model(variants[variant])
    expected = [
        [token for token, _ in generate_step(mx.array(prompt), model, max_tokens=count, prefill_step_size=512)]
        for prompt in prompts(words)
    ]
    backend = MlxBackend(variants[variant])
    got: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts(words)):
        backend.open(str(number), Sampling(temperature=0), prompt)
        first = backend.prefill(str(number), prompt, 0)
        assert first is not None
        got[str(number)] = [first]
    for _ in range(count - 1):
        rows = [Row(id, tokens[-1], len(tokens)) for id, tokens in got.items()]
        for row, run in zip(rows, backend.decode(rows), strict=True):
            got[row.id] += run.tokens
    backend.close()
    assert list(got.values()) == [[int(token) for token in tokens] for tokens in expected]
