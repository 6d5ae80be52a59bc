"""What is read of the config of each served family, and where it is refused or its context is cut."""

from typing import Any

import pytest

from provider.errors import ModelError, ModelUnsupported
from provider.models.architecture import LayerKind
from provider.models.families import FAMILIES, read_architecture

TEXT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
FULL, SLIDING = LayerKind.FULL, LayerKind.SLIDING


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen3_5", "qwen3_5_moe"}))
def test_attention_families_hold_keys_and_values_and_nothing_else(family: str) -> None:
    found = read_architecture(family, {**TEXT, "sliding_window": 4096})

    assert found.linear_layers == found.state_bytes(2) == 0
    assert found.kv_bytes_per_token(2) == 2 * 6 * 2 * found.head_dim * 2


@pytest.mark.parametrize(("family", "head_dim"), [("llama", 32), ("qwen3", 32), ("qwen2", 16), ("phi3", 16)])
def test_the_head_dimension_is_the_one_mlx_lm_builds(family: str, head_dim: int) -> None:
    assert read_architecture(family, TEXT).head_dim == head_dim


@pytest.mark.parametrize(
    ("family", "text", "kinds"),
    [
        ("llama", {}, (FULL,) * 6),
        ("llama", {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}, (SLIDING,) * 5 + (FULL,)),
        ("gpt_oss", {}, (SLIDING, FULL) * 3),
        ("gemma3_text", {"num_hidden_layers": 7}, (SLIDING,) * 5 + (FULL, SLIDING)),
        ("gemma3_text", {"sliding_window_pattern": 3}, (SLIDING, SLIDING, FULL) * 2),
    ],
)
def test_layer_kinds(family: str, text: dict[str, Any], kinds: tuple[LayerKind, ...]) -> None:
    found = read_architecture(family, {**TEXT, "sliding_window": 512, **text})

    assert found.layer_kinds == kinds
    assert found.sliding_window == (512 if SLIDING in kinds else None)


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("gemma3_text", {"layer_types": ["full_attention"] * 6}, "disagrees with sliding_window_pattern 6"),
        ("llama", {"layer_types": ["full_attention"]}, "for every layer"),
        ("llama", {"layer_types": ["chunked_attention"] * 6}, "must name full_attention or sliding_attention"),
        ("mistral", {"layer_types": ["sliding_attention"] * 6}, "without a full_attention layer"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 6}, "without a sliding_attention layer"),
    ],
)
def test_what_mlx_lm_would_build_otherwise_is_refused(family: str, text: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelUnsupported, match=said):
        read_architecture(family, {**TEXT, "sliding_window": 512, **text})


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("gpt_oss", {"sliding_window": None}, "sliding_window must be a positive integer"),
        ("qwen3", {"max_position_embeddings": None}, "max_position_embeddings must be a positive integer"),
        ("qwen3", {"max_position_embeddings": 10**30}, "at most 2147483647, not 10000"),
        ("llama", {"vocab_size": "x" * 5000}, "vocab_size must be .* not 'x{59}: correct it"),
        ("llama", {"num_hidden_layers": 2**70}, "num_hidden_layers must be a positive integer of at most 4096"),
        ("gemma3_text", {"num_hidden_layers": 2**30}, "at most 4096"),
        ("gpt_oss", {"num_hidden_layers": 2**30}, "at most 4096"),
    ],
)
def test_a_dimension_that_is_none_is_a_fault_of_the_file_told_at_once(
    family: str, text: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        read_architecture(family, {**TEXT, "sliding_window": 512, **text})
    assert not isinstance(caught.value, ModelUnsupported)


@pytest.mark.parametrize(
    ("family", "text", "context"),
    [
        ("mistral", {"sliding_window": 4096}, 4096),
        ("mistral", {"sliding_window": None}, 8192),
        ("mistral", {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 3}, 8192),
        ("gemma2", {"sliding_window": 4096}, 4096),
        ("phi3", {"sliding_window": 262144}, 8192),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, 8192),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True}, 4096),
        ("llama", {"sliding_window": 4096}, 8192),
    ],
)
def test_the_context_ends_where_mlx_lm_would_look_further_back_than_the_model_does(
    family: str, text: dict[str, Any], context: int
) -> None:
    assert read_architecture(family, {**TEXT, **text}).context_length == context


@pytest.mark.parametrize(
    ("root", "text", "ties"),
    [(None, {}, False), (True, {}, True), (True, {"tie_word_embeddings": False}, False), (False, {}, False)],
)
def test_the_root_says_whether_the_head_is_tied_where_the_text_part_is_silent(
    root: bool | None, text: dict[str, Any], ties: bool
) -> None:
    linear = {"linear_num_key_heads": 1, "linear_num_value_heads": 1}
    dims = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    config: dict[str, Any] = {"text_config": {**TEXT, **linear, **dims, **text}}
    if root is not None:
        config["tie_word_embeddings"] = root

    assert read_architecture("qwen3_5_moe", config).tie_word_embeddings is ties
