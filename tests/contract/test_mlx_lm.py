"""Everything of mlx-lm that the engine uses: a release that moves it is found here and not on a user's machine."""

import inspect
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.activations import precise_swiglu, swiglu
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.gated_delta import compute_g, gated_delta_update, normalize_qk
from mlx_lm.models.qwen3_5 import DecoderLayer
from mlx_lm.models.qwen3_next import Qwen3NextMLP
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import load_model

from provider.backends.mlx.row_attention import SEAM
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.families import FAMILIES
from tests.fixtures.family_models import family_config, random_model
from tests.test_imports import imports

BACKEND = Path(__file__).parents[2] / "provider" / "backends" / "mlx"

USED = {
    ("mlx_lm.models.activations", "precise_swiglu"),
    ("mlx_lm.models.activations", "swiglu"),
    ("mlx_lm.models.base", "create_causal_mask"),
    ("mlx_lm.models.cache", "KVCache"),
    ("mlx_lm.models.cache", "RotatingKVCache"),
    ("mlx_lm.models.cache", "make_prompt_cache"),
    ("mlx_lm.models.gated_delta", "compute_g"),
    ("mlx_lm.models.gated_delta", "gated_delta_update"),
    ("mlx_lm.models.gated_delta", "normalize_qk"),
    ("mlx_lm.models.qwen3_5", "DecoderLayer"),
    ("mlx_lm.models.qwen3_next", "Qwen3NextMLP"),
    ("mlx_lm.models.switch_layers", "SwitchLinear"),
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


LEAN = """
import sys, provider.backends.mlx.backend
from mlx_lm import utils
print([name for name in ("transformers", "huggingface_hub", "torch") if name in sys.modules])
try:
    utils.snapshot_download("x")
except ImportError as error:
    print(error)
from huggingface_hub import snapshot_download
print(callable(snapshot_download))
"""


def test_a_worker_starts_without_mlx_lms_tokenizers_and_downloads() -> None:
    """Which take longer to import than all the rest; whoever wants them afterwards gets them."""
    done = subprocess.run(
        [sys.executable, "-c", LEAN], capture_output=True, text=True, check=True, cwd=BACKEND.parents[2]
    )
    assert done.stdout.splitlines() == [
        "[]",
        "snapshot_download was not imported with mlx-lm: import its package before the engine's modules",
        "True",
    ]


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


def test_the_precise_product_with_a_gate_is_rounded_once() -> None:
    x, gate = (mx.random.normal((2, 8)).astype(mx.bfloat16) for _ in range(2))
    wide = nn.silu(gate.astype(mx.float32)) * x.astype(mx.float32)
    product = precise_swiglu(x, gate, x)
    assert product.dtype == mx.bfloat16
    assert mx.allclose(product.astype(mx.float32), wide, rtol=2**-8)


def test_the_decay_of_a_step_is_one_number_per_head() -> None:
    a = mx.random.normal((2, 3, 4))
    decay = compute_g(mx.zeros(4), a, mx.ones(4))
    assert decay.shape == (2, 3, 4)
    assert mx.allclose(decay, mx.exp(-nn.softplus(a + 1)), atol=1e-6)


def test_a_layer_of_full_attention_is_made_from_the_arguments_and_its_place(model: nn.Module) -> None:
    args = model.language_model.args
    layer = DecoderLayer(args, args.full_attention_interval - 1)
    assert not layer.is_linear
    assert "self_attn" in layer


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


def test_a_dense_feed_forward_is_what_the_forward_makes_of_its_parts(model: nn.Module) -> None:
    mlp = model.language_model.model.layers[0].mlp
    assert type(mlp) is Qwen3NextMLP
    x = mx.random.normal((2, 3, 128)).astype(mx.bfloat16)
    assert mx.array_equal(mlp(x), mlp.down_proj(swiglu(mlp.gate_proj(x), mlp.up_proj(x))))


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


def test_a_causal_mask_takes_an_offset_and_a_window() -> None:
    mask = create_causal_mask(2, 3, window_size=2)
    assert mask.tolist() == [[False, False, True, True, False], [False, False, False, True, True]]


def test_a_model_tells_which_of_its_layers_slide() -> None:
    model = random_model(family_config("gpt_oss"))
    sliding, full = make_prompt_cache(model)
    assert (type(sliding), sliding.max_size, sliding.keep) == (RotatingKVCache, model.args.sliding_window, 0)
    assert type(full) is KVCache


def test_experts_are_switch_layers_with_their_dtype_on_the_weight() -> None:
    model = random_model(family_config("qwen3_moe"), mx.float16)
    assert {one.weight.dtype for one in model.modules() if isinstance(one, SwitchLinear)} == {mx.float16}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen3_5", "qwen3_5_moe"}))
def test_the_modules_of_every_family_reach_attention_by_the_name_that_is_replaced(family: str) -> None:
    layer = random_model(family_config(family)).layers[0]
    module = inspect.getmodule(type(layer.self_attn))
    assert hasattr(module, SEAM) == (family != "gemma2"), "gemma2 caps its scores in an attention of its own"


def test_a_model_is_loaded_lazily_and_its_config_can_be_amended() -> None:
    loaded, config = load_model(BUNDLED_MODEL_DIR, lazy=True, model_config={"extra": 1})
    assert config["extra"] == 1
    assert loaded.language_model.args.model_type == "qwen3_5_text"
