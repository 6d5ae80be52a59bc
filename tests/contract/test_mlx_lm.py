"""Everything of mlx-lm that the engine uses: a release that moves it is found here and not on a user's machine."""

import inspect
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import KVCache
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk
from mlx_lm.utils import load_model

from provider.models.bundled import BUNDLED_MODEL_DIR
from tests.test_imports import imports

BACKEND = Path(__file__).parents[2] / "provider" / "backends" / "mlx"

USED = {
    ("mlx_lm.models.cache", "KVCache"),
    ("mlx_lm.models.gated_delta", "gated_delta_update"),
    ("mlx_lm.models.gated_delta", "normalize_qk"),
    ("mlx_lm.utils", "load_model"),
}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    loaded, config = load_model(BUNDLED_MODEL_DIR)
    assert config["model_type"] == "qwen3_5"
    return loaded


def test_this_file_speaks_of_every_name_that_is_imported() -> None:
    found = {(module, name) for path in BACKEND.glob("*.py") for module, name in imports(path) if "mlx_lm" in module}
    assert found == USED


def test_a_kv_cache_grows_in_blocks_and_returns_what_it_holds() -> None:
    cache = KVCache()
    assert (KVCache.step, cache.offset, cache.keys) == (256, 0, None)
    one = mx.ones((1, 2, 3, 4))
    keys, values = cache.update_and_fetch(one, one)
    assert keys.shape == values.shape == (1, 2, 3, 4)
    assert (cache.offset, cache.keys.shape) == (3, (1, 2, 256, 4))
    keys, _ = cache.update_and_fetch(mx.ones((1, 2, 300, 4)), mx.ones((1, 2, 300, 4)))
    assert keys.shape == (1, 2, 303, 4)


def test_the_gated_delta_update_takes_and_returns_a_float32_state() -> None:
    parameters = list(inspect.signature(gated_delta_update).parameters)
    assert parameters[:8] == ["q", "k", "v", "a", "b", "A_log", "dt_bias", "state"]
    q = mx.random.normal((2, 3, 2, 32))
    v, gate = mx.random.normal((2, 3, 4, 32)), mx.random.normal((2, 3, 4))
    q, k = normalize_qk(q, q, inv_scale=32**-0.5, eps=1e-6)
    y, state = gated_delta_update(q, k, v, gate, gate, mx.zeros(4), mx.ones(4), mx.zeros((2, 4, 32, 32)))
    assert y.shape == (2, 3, 4, 32)
    assert (state.shape, state.dtype) == ((2, 4, 32, 32), mx.float32)


def test_the_model_has_the_parts_the_forward_names(model: nn.Module) -> None:
    text = model.language_model
    arguments = ("vocab_size", "max_position_embeddings", "num_key_value_heads", "head_dim", "tie_word_embeddings")
    assert [name for name in arguments if not hasattr(text.args, name)] == []
    assert text.model.embed_tokens.as_linear(mx.zeros((1, text.args.hidden_size))).shape == (1, text.args.vocab_size)
    assert text.model.norm.weight.shape == (text.args.hidden_size,)
    for layer in text.model.layers:
        assert layer.input_layernorm
        assert layer.post_attention_layernorm
        assert layer.mlp
        assert layer.is_linear == hasattr(layer, "linear_attn")


def test_the_recurrent_mixer_has_the_parts_the_forward_names(model: nn.Module) -> None:
    mixer = model.language_model.model.layers[0].linear_attn
    numbers = ("conv_kernel_size", "conv_dim", "key_dim", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    assert all(isinstance(getattr(mixer, name), int) for name in numbers)
    parts = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "conv1d", "norm", "out_proj", "A_log", "dt_bias")
    assert [name for name in parts if name not in mixer] == []
    gated = mixer.norm(mx.ones((1, 1, mixer.num_v_heads, mixer.head_v_dim)), mx.ones((1, 1, 4, 32)))
    assert gated.shape == (1, 1, mixer.num_v_heads, mixer.head_v_dim)


def test_the_attention_has_the_parts_the_forward_names_and_rotates_each_row_at_its_own_offset(model: nn.Module) -> None:
    attention = model.language_model.model.layers[3].self_attn
    assert isinstance(attention.scale, float)
    assert all(isinstance(getattr(attention, name), int) for name in ("num_attention_heads", "num_key_value_heads"))
    parts = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "rope")
    assert [name for name in parts if name not in attention] == []
    x = mx.random.normal((2, 4, 1, 32))
    together = attention.rope(x, offset=mx.array([5, 9]))
    assert mx.array_equal(together[1:], attention.rope(x[1:], offset=9))
