"""How the weights of one model may lie on disk: layouts, heads, quantisations, and what is refused at load."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from provider.backends.mlx.backend import MlxBackend
from provider.errors import ModelUnsupported
from provider.models.checkpoint import read_checkpoint
from tests.fixtures.backend_play import prompt_of, solo
from tests.fixtures.family_models import family_config, random_model, write_family

PROMPT = prompt_of(40, seed=1)
MOE = "qwen3_5_moe"


def tokens_of(directory: Path) -> list[int]:
    backend = MlxBackend(directory)
    told = read_checkpoint(directory)
    assert told.kv_bytes_per_token == backend.facts.kv_bytes_per_token
    assert told.state_bytes == backend.facts.state_bytes
    tokens = solo(backend, PROMPT, 16)
    backend.close()
    return tokens


def mlx_lm_tokens(directory: Path) -> list[int]:
    """The greatest logit at each step of mlx-lm's model. Its generator rounds log-probabilities to the model's dtype
    first, where in 16 bits the greatest two are often the same."""
    model, _ = load_model(directory)
    cache = make_prompt_cache(model)
    model(mx.array([PROMPT[:-1]]), cache=cache)
    tokens = [PROMPT[-1]]
    while len(tokens) < 17:
        tokens.append(int(mx.argmax(model(mx.array([tokens[-1:]]), cache=cache)[0, -1]).item()))
    return tokens[1:]


def write_config(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def write_hf_layout(directory: Path, ties: bool) -> Path:
    """As transformers saves a qwen3_5_moe: norms less one, experts' gate and up fused, convolution [C, 1, K]."""
    directory.mkdir()
    config = family_config(MOE, tie_word_embeddings=ties)
    tensors = dict(tree_flatten(random_model(config).parameters()))
    hf: dict[str, mx.array] = {}
    for name, array in tensors.items():
        renamed = name.replace("language_model.model.", "model.language_model.").replace("language_model.lm", "lm")
        if "linear_attn.norm" not in name and name.endswith("norm.weight"):
            hf[renamed] = array - 1.0
        elif "conv1d" in name:
            hf[renamed] = array.moveaxis(2, 1)
        elif "switch_mlp.gate_proj" in name:
            up = tensors[name.replace("gate_proj", "up_proj")]
            fused = renamed.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")
            hf[fused] = mx.concatenate([array, up], axis=1)
        elif "switch_mlp.down_proj" in name:
            hf[renamed.replace("switch_mlp.down_proj.weight", "experts.down_proj")] = array
        elif "switch_mlp" not in name:
            hf[renamed] = array
    hf = {name: mx.contiguous(array) for name, array in hf.items()}
    mx.save_safetensors(str(directory / "model.safetensors"), hf, {"format": "pt"})
    write_config(directory, config)
    return directory


@pytest.mark.parametrize("ties", [False, True])
def test_an_hf_layout_and_its_mlx_conversion_give_the_same_tokens(tmp_path: Path, ties: bool) -> None:
    hf = write_hf_layout(tmp_path / "hf", ties)
    converted = write_family(tmp_path / "mlx", MOE, tie_word_embeddings=ties)

    assert tokens_of(hf) == tokens_of(converted) == mlx_lm_tokens(converted)


def write_published_gpt_oss(directory: Path, converted: Path) -> Path:
    """As gpt-oss is published: experts in mxfp4 blocks of bytes, gate and up interleaved."""
    directory.mkdir()
    tensors: dict[str, Any] = mx.load(str(converted / "model.safetensors"))
    published = {name: array for name, array in tensors.items() if ".experts." not in name}
    for layer in {name.split(".experts.")[0] for name in tensors if ".experts." in name}:
        experts = f"{layer}.experts"
        for target, parts in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
            for kind, suffix in {"weight": "_blocks", "scales": "_scales", "bias": "_bias"}.items():
                stacked = mx.stack([tensors[f"{experts}.{part}.{kind}"] for part in parts], axis=2)
                joined = stacked.reshape(stacked.shape[0], -1, *stacked.shape[3:])
                if kind == "weight":
                    joined = joined.view(mx.uint8).reshape(*joined.shape[:2], -1, 16)
                published[f"{experts}.{target}{suffix}"] = mx.contiguous(joined)
    mx.save_safetensors(str(directory / "model.safetensors"), published, {"format": "pt"})
    write_config(directory, {**family_config("gpt_oss"), "quantization_config": {"quant_method": "mxfp4"}})
    return directory


def test_gpt_oss_is_served_as_it_is_published(tmp_path: Path) -> None:
    converted = write_family(
        tmp_path / "mlx",
        "gpt_oss",
        dtype=mx.bfloat16,
        quantize={"bits": 4, "group_size": 32, "mode": "mxfp4"},
        quant_predicate=lambda path, _: ".experts." in path,
    )
    published = write_published_gpt_oss(tmp_path / "published", converted)

    assert read_checkpoint(published).quantization == "mxfp4"
    assert tokens_of(published) == tokens_of(converted) == mlx_lm_tokens(published)


@pytest.mark.parametrize("family", ["qwen3_5", MOE])
def test_a_head_that_only_the_root_ties_is_tied(tmp_path: Path, family: str) -> None:
    expected = tokens_of(write_family(tmp_path, family, tie_word_embeddings=True))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["text_config"]["tie_word_embeddings"]
    write_config(tmp_path, {**config, "tie_word_embeddings": True})

    assert tokens_of(tmp_path) == expected
    with pytest.raises(ValueError, match="lm_head"):
        load_model(tmp_path)  # why the root's word is passed on


MODES = [
    {"bits": 8, "group_size": 32},
    {"bits": 3, "group_size": 32},
    {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    {"bits": 4, "group_size": 16, "mode": "nvfp4"},
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode.get('mode', 'affine')}{mode['bits']}")
@pytest.mark.parametrize("family", [MOE, "llama"])
def test_every_packing_that_mlx_writes_is_served(tmp_path: Path, family: str, mode: dict[str, Any]) -> None:
    directory = write_family(tmp_path, family, dtype=mx.bfloat16, quantize=mode)

    assert tokens_of(directory) == mlx_lm_tokens(directory)


@pytest.mark.parametrize("packed", [{"bits": 4, "group_size": 32}, {"bits": 4, "group_size": 32, "mode": "mxfp4"}])
@pytest.mark.parametrize("listed", [True, False])
def test_layers_may_be_packed_each_in_its_own_way(tmp_path: Path, packed: dict[str, Any], listed: bool) -> None:
    """Whether config.json lists the exceptions, as mlx-lm writes them, or leaves them to the shapes."""

    def choose(path: str, module: Any) -> bool | dict[str, Any]:
        if "shared_expert" in path or path.endswith("lm_head"):
            return False
        return {"bits": 8, "group_size": 32, "mode": "affine"} if "self_attn" in path or "gate" in path else True

    directory = write_family(tmp_path, MOE, dtype=mx.bfloat16, quantize=packed, quant_predicate=choose)
    config = json.loads((tmp_path / "config.json").read_text())
    assert any(isinstance(entry, dict) for entry in config["quantization"].values())
    if not listed:
        config["quantization"] = packed
        write_config(directory, config)

    assert read_checkpoint(directory).quantization == ("mxfp4" if "mode" in packed else "4bit") + "-g32" + (
        "-mixed" if listed else ""
    )
    assert tokens_of(directory) == mlx_lm_tokens(directory)


@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="Metal and CUDA compute experts in any dtype")
@pytest.mark.parametrize("family", [MOE, "qwen3_moe"])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_experts_the_cpu_cannot_compute_are_refused_at_load(tmp_path: Path, family: str, dtype: mx.Dtype) -> None:
    directory = write_family(tmp_path, family, dtype=dtype)

    with pytest.raises(ModelUnsupported, match=r"experts are b?float16, which MLX cannot compute on cpu.*mlx_lm\.conv"):
        MlxBackend(directory)


def test_layer_types_that_contradict_the_interval_are_refused_at_load(tmp_path: Path) -> None:
    directory = write_family(tmp_path, MOE, layer_types=["full_attention", "linear_attention"])

    with pytest.raises(ModelUnsupported, match="layer_types disagrees"):
        MlxBackend(directory)


def test_a_family_that_is_not_served_is_refused_by_name_with_the_list(tmp_path: Path) -> None:
    write_config(write_family(tmp_path, "llama"), {**family_config("llama"), "model_type": "mamba2"})

    with pytest.raises(ModelUnsupported, match=r"'mamba2' is not served; this release serves gemma2, .*smollm3"):
        MlxBackend(tmp_path)
