"""What is read of a model directory, and what is said of one that is broken or foreign."""

import hashlib
import json
from pathlib import Path

import pytest

from provider.errors import ModelError, ModelUnsupported
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.checkpoint import read_checkpoint
from provider.models.eos import eos_token_ids
from provider.models.inspection import inspect_model
from provider.models.quantization import quantization_summary
from provider.models.weight_files import weight_digest
from provider.mtp.policy import Declaration
from tests.fixtures.checkpoints import (
    TEXT_CONFIG,
    qwen_config,
    write_model,
    write_safetensors,
    write_sharded_model,
)


def test_the_bundled_model_is_described_by_its_files() -> None:
    found = read_checkpoint(BUNDLED_MODEL_DIR)
    weights = BUNDLED_MODEL_DIR.glob("*.safetensors")

    assert (found.family, found.dtype, found.quantization) == ("qwen3_5", "bfloat16", None)
    assert (found.context_length, found.vocab_size) == (4096, 1024)
    assert found.eos_token_ids == {2}
    assert found.architecture.tie_word_embeddings
    assert (found.architecture.full_layers, found.architecture.linear_layers) == (2, 6)
    assert 0 < found.size_bytes < sum(path.stat().st_size for path in weights)
    assert not found.vision


def test_bytes_per_sequence_follow_from_the_dimensions() -> None:
    found = read_checkpoint(BUNDLED_MODEL_DIR)

    assert found.kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert found.state_bytes == 6 * (4 * 32 * 32 * 4 + 3 * (2 * 2 * 32 + 4 * 32) * 2)


def test_a_checkpoint_says_whether_it_declares_a_head(tmp_path: Path) -> None:
    assert read_checkpoint(BUNDLED_MODEL_DIR).mtp.declaration is Declaration.DECLARED
    assert read_checkpoint(write_model(tmp_path)).mtp.declaration is Declaration.ABSENT


HEADED = {**qwen_config(), "mtplx_mtp": {"included": True}}


@pytest.mark.parametrize("damage", ["missing", "foreign", "misplaced", "outside"])
def test_a_broken_head_is_no_problem_of_its_model(tmp_path: Path, damage: str) -> None:
    model = write_sharded_model(tmp_path)
    (model / "config.json").write_text(json.dumps(HEADED))
    index = model / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"]
    shard = "../mtp.safetensors" if damage == "outside" else "mtp-00001.safetensors"
    index.write_text(json.dumps({"weight_map": {**files, "mtp.fc.weight": shard}}))
    if damage != "missing":
        write_safetensors(model / "mtp-00001.safetensors", {"mtp.other.weight": ("BF16", [8])})
    if damage == "foreign":
        (model / "mtp-00001.safetensors").write_bytes(b"text")

    found = inspect_model(model)
    assert found.problems == ()
    assert found.size_bytes == 64 * 16 * 2 + 16 * 2 + (16 if damage == "misplaced" else 0)


def test_without_a_declaration_a_missing_file_is_a_problem_whatever_its_tensors_are_called(tmp_path: Path) -> None:
    model = write_sharded_model(tmp_path)
    index = model / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**files, "mtp.fc.weight": "mtp-00001.safetensors"}}))

    assert "mtp-00001.safetensors is missing" in inspect_model(model).problems[0]


def test_a_flat_config_reads_as_a_nested_one(tmp_path: Path) -> None:
    nested = read_checkpoint(write_model(tmp_path / "nested"))
    flat = read_checkpoint(write_model(tmp_path / "flat", {**TEXT_CONFIG, "model_type": "qwen3_5"}))

    assert flat.architecture == nested.architecture


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_layer_types_that_contradict_the_interval_are_refused(tmp_path: Path, family: str) -> None:
    model = write_model(tmp_path, {**qwen_config(layer_types=["full_attention"] * 4), "model_type": family})

    with pytest.raises(ModelUnsupported, match="layer_types disagrees with full_attention_interval 4"):
        read_checkpoint(model)


@pytest.mark.parametrize(
    ("text", "key"),
    [({"num_key_value_heads": None}, "num_key_value_heads"), ({"head_dim": "many"}, "head_dim")],
)
def test_a_missing_or_senseless_dimension_is_named(tmp_path: Path, text: dict[str, object], key: str) -> None:
    with pytest.raises(ModelError, match=rf"{tmp_path}: config.json: {key} must be .*download the model again"):
        read_checkpoint(write_model(tmp_path, qwen_config(**text)))


@pytest.mark.parametrize("family", ["mamba2", "qwen3_5_text", "Llama", "", ["llama"], None])
def test_another_family_is_described_but_not_served(tmp_path: Path, family: object) -> None:
    model = write_model(tmp_path, {**qwen_config(), "model_type": family})
    found = inspect_model(model)

    assert found.unsupported is not None
    assert found.size_bytes is not None
    assert not found.problems
    with pytest.raises(ModelUnsupported, match=r"is not served; this release serves gemma2, .*qwen3_5_moe"):
        read_checkpoint(model)


def test_a_foreign_quantisation_is_refused_with_the_way_out(tmp_path: Path) -> None:
    config = {**qwen_config(), "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}

    with pytest.raises(ModelUnsupported, match=r"gptq.*mlx_lm\.convert"):
        read_checkpoint(write_model(tmp_path, config))


@pytest.mark.parametrize(
    ("config", "summary"),
    [
        ({}, None),
        ({"quantization": {"bits": 4, "group_size": 64}}, "4bit-g64"),
        ({"quantization": {"bits": 8, "group_size": 32, "mode": "mxfp8"}}, "mxfp8-g32"),
        ({"quantization": {"bits": 4, "group_size": 64, "a.gate": {"bits": 8, "group_size": 64}}}, "4bit-g64-mixed"),
        ({"quantization": {"bits": 4, "group_size": 64, "a.gate": False}}, "4bit-g64"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    ],
)  # fmt: skip
def test_quantisation_is_summed_up_in_a_word(config: dict[str, object], summary: str | None) -> None:
    assert quantization_summary(config) == summary


def test_the_dtype_of_a_quantised_model_is_that_of_its_scales(tmp_path: Path) -> None:
    model = write_model(tmp_path, {**qwen_config(), "quantization": {"bits": 4, "group_size": 16}})
    packed = {"model.embed_tokens.weight": ("U32", [64, 2]), "model.embed_tokens.scales": ("F16", [64, 1])}
    write_safetensors(model / "model.safetensors", packed)

    assert read_checkpoint(model).dtype == "float16"


def test_vision_needs_a_tower_in_the_weights(tmp_path: Path) -> None:
    model = write_model(tmp_path, {**qwen_config(), "vision_config": {}})
    assert not read_checkpoint(model).vision

    tensors = {"model.embed_tokens.weight": ("BF16", [64, 16]), "vision_tower.patch": ("BF16", [4])}
    write_safetensors(model / "model.safetensors", tensors)
    assert read_checkpoint(model).vision


def test_end_tokens_are_gathered_from_every_file(tmp_path: Path) -> None:
    model = write_model(tmp_path, {**qwen_config(eos_token_id=7), "eos_token_id": 2})
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 2]}))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    (model / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 9, "content": "<end>"}]}))

    assert eos_token_ids(model) == {2, 3, 7, 9}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    model = write_sharded_model(tmp_path)
    (model / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing: download"):
        read_checkpoint(model)
    assert inspect_model(model).architecture is not None


def test_a_missing_shard_is_noticed_without_an_index(tmp_path: Path) -> None:
    model = write_sharded_model(tmp_path)
    (model / "model-00001-of-00002.safetensors").unlink()
    (model / "model.safetensors.index.json").unlink()

    with pytest.raises(ModelError, match=r"model-00001-of-00002\.safetensors is missing"):
        read_checkpoint(model)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    model = write_sharded_model(tmp_path)
    write_safetensors(model / "model-00002-of-00002.safetensors", {"other": ("F32", [1])})

    with pytest.raises(ModelError, match=r"lacks model\.norm\.weight"):
        read_checkpoint(model)


@pytest.mark.parametrize("kept", [0, 5, 30, -1])
def test_a_truncated_weight_file_is_named(tmp_path: Path, kept: int) -> None:
    model = write_model(tmp_path)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])

    with pytest.raises(ModelError, match=r"model\.safetensors is cut short"):
        read_checkpoint(model)


@pytest.mark.parametrize("header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b"\xff\xff"])
def test_a_damaged_header_is_an_error_and_not_a_crash(tmp_path: Path, header: bytes) -> None:
    model = write_model(tmp_path)
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)

    with pytest.raises(ModelError, match="damaged safetensors header"):
        read_checkpoint(model)


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"'])
def test_a_config_that_is_no_object_is_named(tmp_path: Path, content: str) -> None:
    model = write_model(tmp_path)
    (model / "config.json").write_text(content)

    with pytest.raises(ModelError, match=r"config\.json"):
        inspect_model(model)


def test_an_empty_directory_has_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        inspect_model(tmp_path)


def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    model = write_sharded_model(tmp_path)
    weight_map = {"model.norm.weight": "../elsewhere.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(ModelError, match="no usable weight_map"):
        read_checkpoint(model)


def test_the_digest_covers_names_and_every_byte(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    content = (model / "model.safetensors").read_bytes()
    lines = f"model.safetensors {hashlib.sha256(content).hexdigest()}\n"
    assert weight_digest(model) == hashlib.sha256(lines.encode()).hexdigest()

    (model / "model.safetensors").write_bytes(content[:-1] + b"\x01")
    assert weight_digest(model) != hashlib.sha256(lines.encode()).hexdigest()
