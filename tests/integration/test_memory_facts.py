"""What a checkpoint's files say of memory against what MLX allocates: the ledger counts what is really there."""

import gc
import mmap
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from provider.backends.base import Row
from provider.backends.mlx.backend import MlxBackend
from provider.models.checkpoint import Checkpoint, read_checkpoint
from provider.scheduler.pool import Pool
from tests.fixtures.backend_play import prefill, prompt_of
from tests.fixtures.family_models import WINDOW, write_family

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss", "mistral", "qwen3_5", "qwen3_5_moe")
SLIDING = ("gemma3_text", "gpt_oss", "mistral")
WEIGHT_SLACK_BYTES = 128 * 2**10
"""Tables that a model computes for itself, such as rotary frequencies."""
SEQUENCE_SLACK_BYTES = 4 * 2**10
"""Tokens and random keys."""
ROUNDING_SLACK_BYTES = mmap.PAGESIZE if mx.metal.is_available() else 0
"""Of each array, where buffers are whole pages."""
REUSE_SLACK_BYTES = 2 * mmap.PAGESIZE
"""MLX hands out a freed buffer again for an array that is up to so much smaller."""
PROMPT = prompt_of(300, seed=3)


@pytest.fixture(scope="module", params=[*FAMILIES, "qwen3_5-bfloat16", "qwen3-4bit"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Checkpoint, MlxBackend, int]]:
    """A family, its facts, its backend, and by how much loading it raised MLX's active memory."""
    family, _, packing = request.param.partition("-")
    directory = write_model(tmp_path_factory.mktemp("model"), family, packing)
    checkpoint = read_checkpoint(directory)
    before = active()
    backend = MlxBackend(directory)
    yield family, checkpoint, backend, active() - before
    backend.close()


def write_model(directory: Path, family: str, packing: str) -> Path:
    match packing:
        case "bfloat16":
            return write_family(directory, family, mx.bfloat16)
        case "4bit":
            return write_family(directory, family, quantize={"group_size": 32, "bits": 4, "mode": "affine"})
        case _:
            return write_family(directory, family)


def active() -> int:
    """Once all that was launched has ended; and nothing freed is kept for reuse."""
    mx.synchronize()
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


def arrays(checkpoint: Checkpoint) -> int:
    """Of one sequence: keys and values, or state and convolution, of each layer."""
    return 2 * len(checkpoint.architecture.layer_kinds)


def ledger(backend: MlxBackend) -> Pool:
    facts = backend.facts
    return Pool(10**9, None, facts.kv_bytes_per_token, facts.state_bytes, facts.block_tokens)


def test_the_files_and_the_backend_give_the_same_facts(served: tuple[str, Checkpoint, MlxBackend, int]) -> None:
    _, checkpoint, backend, _ = served
    facts = backend.facts

    assert facts.kv_bytes_per_token == checkpoint.kv_bytes_per_token
    assert facts.state_bytes == checkpoint.state_bytes
    assert facts.weight_bytes == pytest.approx(checkpoint.size_bytes, abs=WEIGHT_SLACK_BYTES)


def test_loading_takes_the_weights_and_hardly_more(served: tuple[str, Checkpoint, MlxBackend, int]) -> None:
    _, checkpoint, _, grown = served

    assert 0 <= grown - checkpoint.size_bytes <= WEIGHT_SLACK_BYTES


@pytest.mark.parametrize("length", [WINDOW - 1, 256, 300])
def test_a_prompt_takes_what_the_ledger_counts(served: tuple[str, Checkpoint, MlxBackend, int], length: int) -> None:
    family, checkpoint, backend, _ = served
    slack = SEQUENCE_SLACK_BYTES + arrays(checkpoint) * ROUNDING_SLACK_BYTES
    counted, before = ledger(backend).sequence_bytes(length), active()
    prefill(backend, "a", PROMPT[:length])
    grown = active() - before
    backend.release("a")

    if family in SLIDING and length > WINDOW:  # beyond its window a layer holds less than is counted
        assert counted // 4 < grown <= counted + slack
    else:
        assert 0 <= grown - counted <= slack
    assert active() - before <= SEQUENCE_SLACK_BYTES


def test_sequences_that_decode_together_take_what_the_ledger_counts(
    served: tuple[str, Checkpoint, MlxBackend, int],
) -> None:
    family, checkpoint, backend, _ = served
    lengths, before = {"a": 200, "b": 254, "c": 20}, active()
    tokens = {id: prefill(backend, id, PROMPT[:length]) for id, length in lengths.items()}
    for step in range(1, 5):  # the second one grows into another block
        runs = backend.decode([Row(id, token, step) for id, token in tokens.items()])
        tokens = {id: run.tokens[-1] for id, run in zip(tokens, runs, strict=True)}
    counted = sum(ledger(backend).sequence_bytes(length + 4) for length in lengths.values())
    grown = active() - before
    for id in lengths:
        backend.release(id)

    # One of them grew into new arrays.
    slack = SEQUENCE_SLACK_BYTES + arrays(checkpoint) * ROUNDING_SLACK_BYTES
    assert grown <= counted + len(lengths) * slack + arrays(checkpoint) * REUSE_SLACK_BYTES
    assert family in SLIDING or grown >= counted
