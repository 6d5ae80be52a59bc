"""Heads written with mlx-lm's own block and MLX's own packing pass the inspection, name by name and shape by shape."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3_5 import DecoderLayer, TextModelArgs

from provider.mtp.artifact import inspect_inline_head
from provider.mtp.packing import Packing
from tests.fixtures.family_models import family_config, write_family

PACKINGS: list[dict[str, Any]] = [
    {"group_size": 32, "bits": 4, "mode": "affine"},
    {"group_size": 32, "bits": 8, "mode": "affine"},
    {"group_size": 32, "bits": 6, "mode": "affine"},
    {"group_size": 32, "bits": 3, "mode": "affine"},
    {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    {"group_size": 16, "bits": 4, "mode": "nvfp4"},
]


class Head(nn.Module):
    """As docs/mtp.md has it; the attributes' names are the tensors'."""

    def __init__(self, args: TextModelArgs) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * args.hidden_size, args.hidden_size, bias=False)
        self.pre_fc_norm_embedding = nn.RMSNorm(args.hidden_size)
        self.pre_fc_norm_hidden = nn.RMSNorm(args.hidden_size)
        self.norm = nn.RMSNorm(args.hidden_size)
        self.layers = [DecoderLayer(args, args.full_attention_interval - 1)]


def write_headed(directory: Path, family: str, quantization: dict[str, Any] | None) -> Path:
    """A random model of the family, and a random head beside it."""
    write_family(directory, family, mtp_num_hidden_layers=1)
    head = Head(TextModelArgs.from_dict(dict(family_config(family)["text_config"])))
    if quantization is not None:
        nn.quantize(head, **quantization)
    tensors = {f"mtp.{name}": array for name, array in tree_flatten(head.parameters())}
    mx.save_safetensors(str(directory / "mtp-00001.safetensors"), tensors)
    config = json.loads((directory / "config.json").read_text())
    config |= {"mtplx_mtp": {"included": True}, "mtplx_mtp_quantization": quantization or {}}
    (directory / "config.json").write_text(json.dumps(config))
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    index["weight_map"] |= dict.fromkeys(tensors, "mtp-00001.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


@pytest.mark.parametrize(("family", "tensors"), [("qwen3_5", 15), ("qwen3_5_moe", 20)])
def test_a_head_of_mlxs_own_modules_passes(tmp_path: Path, family: str, tensors: int) -> None:
    head = inspect_inline_head(write_headed(tmp_path, family, None))

    assert (len(head.tensors), head.packings, head.dtype) == (tensors, {}, "float32")


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("packing", PACKINGS, ids=lambda one: f"{one['mode']}{one['bits']}")
def test_a_head_packed_by_mlx_passes(tmp_path: Path, family: str, packing: dict[str, Any]) -> None:
    head = inspect_inline_head(write_headed(tmp_path, family, packing))

    assert set(head.packings.values()) == {Packing(**packing)}
    assert len(head.packings) == (8 if family == "qwen3_5" else 13)


def test_the_facts_lead_to_the_bytes_that_mlx_reads(tmp_path: Path) -> None:
    head = inspect_inline_head(write_headed(tmp_path, "qwen3_5", PACKINGS[0]))
    loaded = mx.load(str(tmp_path / "mtp-00001.safetensors"))
    content = (tmp_path / "mtp-00001.safetensors").read_bytes()

    for tensor in head.tensors.values():
        array = loaded[tensor.name]
        assert array.shape == tensor.shape
        assert bytes(memoryview(array)) == content[tensor.offset : tensor.offset + tensor.size_bytes]
