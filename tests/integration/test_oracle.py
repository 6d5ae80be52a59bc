"""Tokens and logits against transformers' Qwen3.5 in torch, float32, from a stored answer: no torch needed.

Both mlx-lm's model class and the engine's own forward are asked, so that a difference tells whose it is.
Written by tools/make_oracle.py.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from provider.backends.mlx.qwen3_5 import Trunk
from tests.fixtures.oracle_models import NAMES, ORACLE, STEPS, TOP, model_directory, weights_digest

TOLERANCE = 2e-4
"""On logits up to about 20 in float32: two implementations that sum in different orders differ by less."""
TOLD: dict[str, Any] = json.loads(ORACLE.read_text())

LogitsOf = Callable[[Path, Sequence[int]], np.ndarray]
"""[T] tokens -> [T, V] float32: row t predicts token t + 1."""


def mlx_lm_logits(directory: Path, tokens: Sequence[int]) -> np.ndarray:
    return np.array(_float32(directory)(mx.array([list(tokens)]))[0])


def engine_logits(directory: Path, tokens: Sequence[int]) -> np.ndarray:
    """One prefill for all but the generated tail, then position by position."""
    trunk = Trunk(_float32(directory))
    cells = trunk.fresh()
    first = max(1, len(tokens) - STEPS + 1)
    chunks = [tokens[:first], *([token] for token in tokens[first:])]
    rows = [np.array(trunk.logits(trunk.prefill(cells, chunk)[-1:])[0]) for chunk in chunks]
    unseen = np.full((first - 1, rows[0].size), np.nan, np.float32)
    return np.concatenate([unseen, np.stack(rows)])


def _float32(directory: Path) -> Any:
    model, _ = load_model(directory)
    model.set_dtype(mx.float32)
    return model


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = model_directory(name, tmp_path_factory.mktemp("oracle"))
    assert weights_digest(found) == TOLD["models"][name]["weights_sha256"], "not the weights the oracle was asked with"
    return found


@pytest.mark.parametrize("logits_of", [mlx_lm_logits, engine_logits])
def test_greedy_tokens_and_logits_equal_transformers(name: str, directory: Path, logits_of: LogitsOf) -> None:
    for told in TOLD["models"][name]["prompts"]:
        prompt, generated = told["prompt"], told["tokens"]
        logits = logits_of(directory, [*prompt, *generated[:-1]])[len(prompt) - 1 :]
        expected = np.array([step["logits"] for step in told["top"]], np.float32)
        ids = np.array([step["ids"] for step in told["top"]])

        assert logits.shape[0] == STEPS == len(generated)
        assert np.argmax(logits, axis=-1).tolist() == generated
        np.testing.assert_allclose(np.take_along_axis(logits, ids, axis=-1), expected, rtol=0, atol=TOLERANCE)


def test_the_oracle_holds_whole_answers() -> None:
    for model in TOLD["models"].values():
        for told in model["prompts"]:
            assert len(told["tokens"]) == len(told["top"]) == STEPS
            assert all(len(step["ids"]) == len(step["logits"]) == TOP for step in told["top"])
            assert [step["ids"][0] for step in told["top"]] == told["tokens"]
