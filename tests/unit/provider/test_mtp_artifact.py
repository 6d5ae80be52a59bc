"""The inspection of an embedded head: what passes in every layout, and each check by a head with that one fault."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provider.errors import HeadInvalid
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.mtp.artifact import inspect_inline_head, reinspect
from provider.mtp.packing import Packing
from provider.mtp.policy import Reason
from tests.fixtures.heads import (
    BASE,
    DENSE,
    FUSED,
    HEAD,
    HEAD_DIM,
    INDEX,
    KV,
    SPLIT,
    TRUNK,
    HeadedModel,
    Stored,
    headed_model,
    packed,
    shift_norms,
    stored_head,
    write_tensors,
)

AFFINE4 = {"group_size": 32, "bits": 4, "mode": "affine"}
AFFINE8 = {"group_size": 32, "bits": 8}
MXFP8 = {"group_size": 32, "bits": 8, "mode": "mxfp8"}
Q_NORM = "mtp.layers.0.self_attn.q_norm.weight"
FC = "mtp.fc.weight"

Break = Callable[[HeadedModel], object]


def refused(directory: Path) -> HeadInvalid:
    with pytest.raises(HeadInvalid) as caught:
        inspect_inline_head(directory)
    assert caught.value.reason is Reason.INLINE_ARTIFACT_INVALID
    return caught.value


# What passes


def test_the_bundled_head_is_sound() -> None:
    head = inspect_inline_head(BUNDLED_MODEL_DIR)

    assert (len(head.tensors), head.packings, head.block_size, head.max_drafts) == (15, {}, 3, 2)
    assert (head.prefix, head.dtype, head.shift_norms, head.fused_experts) == ("mtp.", "bfloat16", False, False)
    assert (head.payload_bytes, head.additional_bytes, head.kv_bytes_per_token) == (394624, 0, 2 * 2 * 32 * 2)
    assert head.shards == (BUNDLED_MODEL_DIR / HEAD,)


def test_each_tensor_is_found_where_the_facts_say() -> None:
    head = inspect_inline_head(BUNDLED_MODEL_DIR)
    content = (BUNDLED_MODEL_DIR / HEAD).read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])

    for key, tensor in head.tensors.items():
        start, stop = header[f"mtp.{key}"]["data_offsets"]
        assert (tensor.name, tensor.offset, tensor.size_bytes) == (f"mtp.{key}", length + start, stop - start)
        assert list(tensor.shape) == header[f"mtp.{key}"]["shape"]


def test_the_digests_are_those_of_config_and_index() -> None:
    head = inspect_inline_head(BUNDLED_MODEL_DIR)
    config, index = (
        hashlib.sha256((BUNDLED_MODEL_DIR / name).read_bytes()).hexdigest() for name in ("config.json", INDEX)
    )

    assert (head.config_digest, head.index_digest) == (config, index)
    assert head.revision == f"inline-{config[:8]}-{index[:8]}"


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("shapes", "moe", "count", "fused"), [(DENSE, False, 15, False), (FUSED, True, 19, True), (SPLIT, True, 20, False)]
)
def test_unquantised_heads_pass_in_both_layouts(
    tmp_path: Path, dtype: str, raw: bool, shapes: dict[str, list[int]], moe: bool, count: int, fused: bool
) -> None:
    model = headed_model(stored_head(shapes, dtype, raw), moe=moe, dtype=dtype, raw=raw)
    head = inspect_inline_head(model.write(tmp_path))

    assert (len(head.tensors), head.fused_experts, head.shift_norms) == (count, fused, raw)
    assert head.kv_bytes_per_token == 2 * KV * HEAD_DIM * (4 if dtype == "F32" else 2)


@pytest.mark.parametrize(("packing", "dense", "split"), [(AFFINE4, 31, 46), (AFFINE8, 31, 46), (MXFP8, 23, 33)])
def test_packed_heads_pass(tmp_path: Path, packing: dict[str, Any], dense: int, split: int) -> None:
    mode = packing.get("mode", "affine")
    for shapes, moe, count in ((DENSE, False, dense), (SPLIT, True, split)):
        stored = packed(stored_head(shapes), packing["group_size"], packing["bits"], mode)
        head = inspect_inline_head(headed_model(stored, packing, moe).write(tmp_path / str(moe)))

        assert len(head.tensors) == count
        assert head.packings["fc"] == Packing(32, packing["bits"], mode)
        assert len(head.packings) == (13 if moe else 8)


def test_a_module_may_be_packed_its_own_way_and_another_not_at_all(tmp_path: Path) -> None:
    stored = packed(stored_head(SPLIT), 32, 8, "mxfp8", ("fc",))
    stored = packed(stored, 32, 4, "affine", ("layers.0.mlp.switch_mlp.up_proj",))
    stored = packed(stored, 64, 8, "affine", ("layers.0.mlp.gate",))
    quantization = {
        **AFFINE4,
        "fc": MXFP8,
        "layers.0.mlp.gate": {"group_size": 64, "bits": 8},
        "remark": "packed by hand",
    }
    head = inspect_inline_head(headed_model(stored, quantization, moe=True).write(tmp_path))

    assert head.packings == {
        "fc": Packing(32, 8, "mxfp8"),
        "layers.0.mlp.gate": Packing(64, 8, "affine"),
        "layers.0.mlp.switch_mlp.up_proj": Packing(32, 4, "affine"),
    }


def test_what_the_declaration_leaves_out_has_defaults(tmp_path: Path) -> None:
    model = headed_model()
    model.config["mtplx_mtp"] = {"included": True}
    head = inspect_inline_head(model.write(tmp_path))

    assert (head.prefix, head.block_size) == ("mtp.", 3)


def test_another_prefix_and_a_flat_config_pass(tmp_path: Path) -> None:
    model = headed_model(prefix="language_model.mtp.")
    model.config |= model.config.pop("text_config") | {"model_type": "qwen3_5"}

    assert len(inspect_inline_head(model.write(tmp_path)).tensors) == 15


def test_a_head_may_lie_among_the_trunks_tensors(tmp_path: Path) -> None:
    model = headed_model()
    model.files[TRUNK] |= model.files.pop(HEAD)
    model.weight_map.update(dict.fromkeys(model.weight_map, TRUNK))

    assert inspect_inline_head(model.write(tmp_path)).shards == (tmp_path / TRUNK,)


def test_links_are_followed_as_in_a_hubs_cache(tmp_path: Path) -> None:
    blobs = headed_model().write(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)

    assert len(inspect_inline_head(snapshot).tensors) == 15


def test_a_float32_norm_in_a_bfloat16_head_passes(tmp_path: Path) -> None:
    model = headed_model()
    model.head[Q_NORM] = Stored("F32", [HEAD_DIM], 1.0)

    assert inspect_inline_head(model.write(tmp_path)).tensors[Q_NORM.removeprefix("mtp.")].dtype == "F32"


# The config and the index


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent").path == tmp_path / "absent" / "config.json"


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b"{", "is not usable JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"\xff", "is not usable JSON"),
    ],
)
def test_config_and_index_must_be_there_and_parse(
    tmp_path: Path, name: str, content: bytes | None, detail: str
) -> None:
    path = headed_model().write(tmp_path) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    fault = refused(tmp_path)
    assert (fault.path, fault.detail[: len(detail)]) == (path, detail)
    assert str(fault).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_config_and_index_have_at_most_1_mib(tmp_path: Path, name: str) -> None:
    path = headed_model().write(tmp_path) / name
    content = path.read_text()
    path.write_text(content + " " * (2**20 - len(content)))
    inspect_inline_head(tmp_path)

    path.write_text(content + " " * (2**20 - len(content) + 1))
    assert refused(tmp_path).detail == "is larger than 1 MiB"


@pytest.mark.parametrize("name", ["config.json", INDEX, HEAD])
def test_a_directory_or_a_pipe_is_no_file_of_a_head(tmp_path: Path, name: str) -> None:
    path = headed_model().write(tmp_path) / name
    path.unlink()
    path.mkdir()
    assert (refused(tmp_path).path, refused(tmp_path).detail) == (path, "is not a regular file")

    path.rmdir()
    os.mkfifo(path)
    assert refused(tmp_path).detail == "is not a regular file"


def declare(**changes: Any) -> Break:
    return lambda model: model.config["mtplx_mtp"].update(changes)


def say(**changes: Any) -> Break:
    return lambda model: model.text.update(changes)


def quantise(value: Any) -> Break:
    return lambda model: model.config.update(mtplx_mtp_quantization=value)


DECLARATIONS: list[tuple[Break, str]] = [
    (declare(included=False), '"included": true'),
    (declare(included=1), '"included": true'),
    (lambda model: model.config.pop("mtplx_mtp"), '"included": true'),
    (declare(block_size=1), "block_size must be an integer from 2 to 8, not 1"),
    (declare(block_size=9), "block_size must be an integer from 2 to 8, not 9"),
    (declare(block_size=True), "not True"),
    (declare(block_size=3.0), r"not 3\.0"),
    (declare(block_size="3"), "not '3'"),
    (declare(block_size=None), "not None"),
    (declare(prefix=""), "prefix must be"),
    (declare(prefix="mtp/"), "prefix must be"),
    (declare(prefix="mtp.\n"), "prefix must be"),
    (declare(prefix="m" * 129), "prefix must be"),
    (declare(prefix=None), "prefix must be"),
    (declare(prefix="other."), "lists no tensor of a head"),
    (say(mtp_num_hidden_layers=2), "mtp_num_hidden_layers must be 1, not 2"),
    (say(mtp_num_hidden_layers=0), "mtp_num_hidden_layers must be 1, not 0"),
    (say(mtp_num_hidden_layers=True), "mtp_num_hidden_layers must be 1, not True"),
    (lambda model: model.text.pop("mtp_num_hidden_layers"), "mtp_num_hidden_layers must be 1, not None"),
    (say(mtp_use_dedicated_embeddings=True), "mtp_use_dedicated_embeddings"),
    (say(attention_bias=True), "attention_bias"),
    (say(intermediate_size="many"), "intermediate_size must be a positive integer"),
    (say(hidden_size=None), "hidden_size must be a positive integer"),
    (say(num_experts=4), "moe_intermediate_size must be a positive integer"),
    (lambda model: model.config.update(model_type="llama"), "model_type 'llama'"),
    (lambda model: model.config.pop("mtplx_mtp_quantization"), "mtplx_mtp_quantization must be an object"),
    (quantise(None), "mtplx_mtp_quantization must be an object"),
    (quantise([]), "mtplx_mtp_quantization must be an object"),
    (quantise({**AFFINE4, "mode": "gguf"}), "mode must be affine, mxfp4, mxfp8 or nvfp4"),
    (quantise({**AFFINE4, "bits": 7}), "does not come with group_size 32 and bits 7"),
    (quantise({**AFFINE4, "group_size": 16}), "does not come with group_size 16"),
    (quantise({"bits": 4}), "does not come with group_size None"),
    (quantise({**AFFINE4, "bits": True}), "bits True"),
    (quantise({**MXFP8, "bits": 4}), "mxfp8 does not come with group_size 32 and bits 4"),
    (quantise({"layers.0.mlp.gate_proj": False}), "gate_proj must be an object"),
    (quantise({"layers.0.mlp.gate_proj": {"bits": 3}}), "layers.0.mlp.gate_proj: affine does not come with"),
    (quantise({"layers.0.mlp.gate_proj": AFFINE4}), "names layers.0.mlp.gate_proj, which has no scales"),
    (quantise({"layers.1.mlp.gate_proj": AFFINE4}), "layers.1.mlp.gate_proj, which is no linear module"),
]


@pytest.mark.parametrize(("break_it", "detail"), DECLARATIONS)
def test_the_declaration_must_be_sound(tmp_path: Path, break_it: Break, detail: str) -> None:
    model = headed_model()
    break_it(model)
    with pytest.raises(HeadInvalid, match=detail) as caught:
        inspect_inline_head(model.write(tmp_path))

    assert caught.value.reason is Reason.INLINE_ARTIFACT_INVALID
    assert caught.value.path in (tmp_path / "config.json", tmp_path / INDEX)


# What the index lists


def drop(name: str) -> Break:
    return lambda model: model.drop(name)


def add(name: str, stored: Stored) -> Break:
    return lambda model: model.add(name, stored)


def locate(name: str, file: Any) -> Break:
    return lambda model: model.weight_map.update({name: file})


def crowd(model: HeadedModel) -> None:
    for number in range(498):
        model.add(f"mtp.{number}", Stored("BF16", [1]))


LISTINGS: list[tuple[Break, str, str]] = [
    (lambda model: model.index.clear(), "has no weight_map", INDEX),  # type: ignore[union-attr]
    (lambda model: model.index.update(weight_map=[]), "has no weight_map", INDEX),  # type: ignore[union-attr]
    (locate(FC, "../mtp-00001.safetensors"), "not a bare", INDEX),
    (locate(FC, "/mtp-00001.safetensors"), "not a bare", INDEX),
    (locate(FC, "sub/mtp-00001.safetensors"), "not a bare", INDEX),
    (locate(FC, "sub\\mtp-00001.safetensors"), "not a bare", INDEX),
    (locate(FC, "mtp\0.safetensors"), "not a bare", INDEX),
    (locate(FC, "mtp-00001.bin"), "not a bare", INDEX),
    (locate(FC, 7), "not a bare", INDEX),
    (locate(FC, "m" * 244 + ".safetensors"), "not a bare", INDEX),
    (locate(FC, "elsewhere.safetensors"), "is missing", "elsewhere.safetensors"),
    (locate("model.other", "elsewhere.safetensors"), "is missing", "elsewhere.safetensors"),
    (crowd, "lists 513 tensors", INDEX),
    (add("mtp." + "x" * 1021, Stored("BF16", [1])), "name is longer than 1024 bytes", INDEX),
    (add("language_model.mtp.fc.weight", Stored("BF16", [64, 128])), "lists fc.weight twice", INDEX),
    (locate("mtp.fc.bias", HEAD), "lacks mtp.fc.bias, which the index lists", HEAD),
    (lambda model: model.weight_map.pop(FC), "holds mtp.fc.weight, which the index does not list there", HEAD),
    (
        lambda model: model.files[TRUNK].update({FC: Stored("BF16", [64, 128])}),
        "holds mtp.fc.weight, which the index does not list there",
        TRUNK,
    ),
]


@pytest.mark.parametrize(("break_it", "detail", "name"), LISTINGS)
def test_the_index_must_list_the_head_once_and_truly(tmp_path: Path, break_it: Break, detail: str, name: str) -> None:
    model = headed_model()
    break_it(model)
    fault = refused(model.write(tmp_path))

    assert detail in fault.detail
    assert fault.path == tmp_path / name


def test_a_name_of_255_bytes_and_512_tensors_are_within_the_limits(tmp_path: Path) -> None:
    """They fail later, for what they hold."""
    model = headed_model()
    name = "m" * 243 + ".safetensors"
    model.files[name] = model.files.pop(HEAD)
    model.weight_map.update({one: name for one, file in model.weight_map.items() if file == HEAD})
    inspect_inline_head(model.write(tmp_path / "long"))

    model = headed_model()
    for number in range(497):
        model.add(f"mtp.{number}", Stored("BF16", [1]))
    assert "which such a head does not have" in refused(model.write(tmp_path / "many")).detail


def test_a_key_that_the_index_gives_twice_is_refused(tmp_path: Path) -> None:
    model = headed_model().write(tmp_path)
    index = (model / INDEX).read_text()
    (model / INDEX).write_text(index.replace('{"weight_map": {', f'{{"weight_map": {{"{FC}": "{HEAD}", '))

    assert "a key is given twice" in refused(model).detail


# What the files hold


@pytest.mark.parametrize("damage", ["empty", "no length", "zero header", "cut short", "not JSON", "huge header"])
def test_a_file_must_be_safetensors(tmp_path: Path, damage: str) -> None:
    path = headed_model().write(tmp_path) / HEAD
    content = path.read_bytes()
    broken = {
        "empty": b"",
        "no length": content[:7],
        "zero header": bytes(8) + content[8:],
        "cut short": content[:-1],
        "not JSON": content[:8] + b"}" + content[9:],
        "huge header": (16 * 2**20 + 1).to_bytes(8, "little") + b"{}" + b" " * (16 * 2**20),
    }
    path.write_bytes(broken[damage])

    assert (refused(tmp_path).path, refused(tmp_path).detail[:13]) == (path, "is not usable")


def test_a_header_of_16_mib_is_read(tmp_path: Path) -> None:
    path = headed_model().write(tmp_path) / HEAD
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length] + b" " * (16 * 2**20 - length)
    path.write_bytes((16 * 2**20).to_bytes(8, "little") + header + content[8 + length :])

    assert len(inspect_inline_head(tmp_path).tensors) == 15


@pytest.mark.parametrize("offsets", [[64, 0], [0], [0, 64, 128], [-64, 0], [0, 2**40], [0, "64"], None])
def test_every_tensor_has_two_ordered_offsets_within_its_file(tmp_path: Path, offsets: Any) -> None:
    model = headed_model()
    model.head[Q_NORM].offsets = offsets or []
    fault = refused(model.write(tmp_path))

    assert fault.path == tmp_path / HEAD


def test_offsets_must_agree_with_shape_and_type(tmp_path: Path) -> None:
    model = headed_model()
    model.head[Q_NORM].offsets = [0, 62]

    assert "has 62 bytes, which its shape and type contradict" in refused(model.write(tmp_path)).detail


def test_an_empty_head_has_no_payload(tmp_path: Path) -> None:
    stored = {name: Stored("BF16", [0]) for name in DENSE}

    assert "the head's tensors have 0 bytes" in refused(headed_model(stored).write(tmp_path)).detail


def test_a_head_has_at_most_2_gib(tmp_path: Path) -> None:
    """Of a sparse file: nothing of it is read before it is refused."""
    model = headed_model().write(tmp_path)
    size = 2 * 2**30
    header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 2]} for name, shape in DENSE.items()}
    header["fc.weight"]["data_offsets"] = [0, size]
    raw = json.dumps({f"mtp.{name}": entry for name, entry in header.items()}).encode()
    (model / HEAD).write_bytes(len(raw).to_bytes(8, "little") + raw)
    os.truncate(model / HEAD, 8 + len(raw) + size)

    assert "at most 2 GiB are accepted" in refused(model).detail


PACKED = packed(stored_head(DENSE), 32, 4, "affine")


def change(name: str, stored: Stored) -> Break:
    return lambda model: model.head.update({name: stored})


EXPERT_KEYS = sorted(set(FUSED) - set(BASE)) + sorted(set(SPLIT) - set(FUSED))


@pytest.mark.parametrize("name", DENSE)
def test_every_tensor_of_a_dense_head_is_required(tmp_path: Path, name: str) -> None:
    model = headed_model()
    model.drop(f"mtp.{name}")

    assert refused(model.write(tmp_path)).detail == f"the head lacks {name}"


@pytest.mark.parametrize("name", EXPERT_KEYS)
def test_every_tensor_of_a_head_with_experts_is_required(tmp_path: Path, name: str) -> None:
    model = headed_model(stored_head(FUSED if name in FUSED else SPLIT), moe=True)
    model.drop(f"mtp.{name}")

    assert f"the head lacks {name}" in refused(model.write(tmp_path)).detail


@pytest.mark.parametrize("name", sorted(DENSE))
def test_every_shape_follows_from_the_target(tmp_path: Path, name: str) -> None:
    model = headed_model()
    shape = DENSE[name]
    model.head[f"mtp.{name}"] = Stored("BF16", [shape[0] + 32, *shape[1:]], 1.0)
    fault = refused(model.write(tmp_path))

    assert fault.detail == f"{name} has the shape {[shape[0] + 32, *shape[1:]]}; the target requires {shape}"
    assert fault.path == tmp_path / HEAD


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ({"hidden_size": 96}, "fc.weight"),
        ({"intermediate_size": 128}, "layers.0.mlp.gate_proj.weight"),
        ({"num_attention_heads": 4}, "layers.0.self_attn.q_proj.weight"),
        ({"num_key_value_heads": 2}, "layers.0.self_attn.k_proj.weight"),
        ({"head_dim": 16}, "layers.0.self_attn.q_proj.weight"),
    ],
)
def test_a_head_of_a_target_with_other_dimensions_is_refused(tmp_path: Path, text: dict[str, int], name: str) -> None:
    model = headed_model()
    model.text.update(text)

    assert refused(model.write(tmp_path)).detail.startswith(f"{name} has the shape")


@pytest.mark.parametrize(
    ("text", "shapes", "detail"),
    [
        ({"num_experts": 8}, FUSED, "layers.0.mlp.gate.weight has the shape"),
        ({"moe_intermediate_size": 64}, FUSED, "layers.0.mlp.experts.gate_up_proj has the shape"),
        ({"moe_intermediate_size": 64}, SPLIT, "layers.0.mlp.switch_mlp.gate_proj.weight has the shape"),
        ({"shared_expert_intermediate_size": 64}, SPLIT, "layers.0.mlp.shared_expert.gate_proj.weight has the shape"),
        ({}, DENSE, "the target has experts, and its head none"),
        ({"num_experts": 0}, FUSED, "the head has experts, and its target none"),
    ],
)
def test_experts_follow_from_the_target_too(
    tmp_path: Path, text: dict[str, int], shapes: dict[str, list[int]], detail: str
) -> None:
    model = headed_model(stored_head(shapes), moe=True)
    model.text.update(text)

    assert refused(model.write(tmp_path)).detail.startswith(detail)


def test_a_head_with_both_forms_of_experts_is_refused(tmp_path: Path) -> None:
    model = headed_model(stored_head({**SPLIT, **FUSED}), moe=True)

    assert "which such a head does not have" in refused(model.write(tmp_path)).detail


CONTENTS: list[tuple[Break, str]] = [
    (add("mtp.fc.bias", Stored("BF16", [64])), "the head has fc.bias, which such a head does not have"),
    (add("mtp.embed_tokens.weight", Stored("BF16", [256, 64])), "the head has embed_tokens.weight"),
    (add("mtp.layers.1.input_layernorm.weight", Stored("BF16", [64])), "the head has layers.1.input_layernorm.weight"),
    (change(FC, Stored("U8", [64, 128])), "fc.weight is U8, not F32 or BF16 or F16"),
    (change(FC, Stored("U32", [64, 128])), "fc.weight is U32, not F32 or BF16 or F16"),
]


@pytest.mark.parametrize(("break_it", "detail"), CONTENTS)
def test_a_plain_head_holds_what_it_must_and_no_more(tmp_path: Path, break_it: Break, detail: str) -> None:
    model = headed_model()
    break_it(model)

    assert refused(model.write(tmp_path)).detail.startswith(detail)


PACKINGS: list[tuple[Break, str]] = [
    (quantise({}), "fc has scales, and mtplx_mtp_quantization does not say how it is packed"),
    (quantise({**AFFINE4, "bits": 8}), "fc.weight has the shape [64, 16]; the target requires [64, 32]"),
    (
        quantise({**AFFINE4, "fc": {"group_size": 64, "bits": 4}}),
        "fc.scales has the shape [64, 4]; the target requires [64, 2]",
    ),
    (quantise({**AFFINE4, "group_size": 128}), "rows of 64 are no whole number of groups of 128"),
    (change(FC, Stored("U32", [64, 17])), "fc.weight has the shape [64, 17]"),
    (change(FC, Stored("BF16", [64, 128])), "fc.weight is BF16, not U32"),
    (change("mtp.fc.scales", Stored("F16", [64, 4])), "fc.scales is F16, not BF16"),
    (change("mtp.fc.biases", Stored("F32", [64, 4])), "fc.biases is F32, not BF16"),
    (drop("mtp.fc.biases"), "the head lacks fc.biases"),
    (drop("mtp.fc.scales"), "the head has fc.biases"),
    (add("mtp.norm.scales", Stored("BF16", [2])), "the head has norm.scales"),
]


@pytest.mark.parametrize(("break_it", "detail"), PACKINGS)
def test_a_packed_head_holds_what_it_must_and_no_more(tmp_path: Path, break_it: Break, detail: str) -> None:
    model = headed_model(dict(PACKED), AFFINE4)
    break_it(model)

    assert detail in refused(model.write(tmp_path)).detail


def test_a_format_without_biases_has_none_and_its_scales_are_bytes(tmp_path: Path) -> None:
    model = headed_model(packed(stored_head(DENSE), 32, 8, "mxfp8"), MXFP8)
    model.head["mtp.fc.scales"] = Stored("BF16", [64, 4])
    assert refused(model.write(tmp_path / "scales")).detail == "fc.scales is BF16, not U8"

    model = headed_model(packed(stored_head(DENSE), 32, 8, "mxfp8"), MXFP8)
    model.add("mtp.fc.biases", Stored("BF16", [64, 4]))
    assert "the head has fc.biases" in refused(model.write(tmp_path / "biases")).detail


def test_fused_experts_are_never_packed(tmp_path: Path) -> None:
    stored = stored_head(FUSED)
    stored["layers.0.mlp.experts.down_proj.scales"] = Stored("BF16", [4, 64, 1])

    fault = refused(headed_model(stored, AFFINE4, moe=True).write(tmp_path))
    assert "the head has layers.0.mlp.experts.down_proj.scales" in fault.detail


# The norms, and the trunk they follow


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize(
    ("raw", "stored"), [(False, 0.0), (False, 0.75), (False, 2.0), (False, 2.75), (True, 1.0), (True, -1.0)]
)
@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_norms_stored_in_the_other_layout_are_noticed(
    tmp_path: Path, dtype: str, raw: bool, stored: float, name: str
) -> None:
    model = headed_model(stored_head(DENSE, dtype, raw), dtype=dtype, raw=raw)
    model.head[f"mtp.layers.0.self_attn.{name}.weight"] = Stored(dtype, [HEAD_DIM], stored)
    fault = refused(model.write(tmp_path))

    assert f"{name} would be applied with a mean of {stored + raw:.2f}, not near 1" in fault.detail


@pytest.mark.parametrize("applied", [1.0, 1.5, 1.79])
@pytest.mark.parametrize("raw", [False, True])
def test_norms_of_trained_heads_pass(tmp_path: Path, applied: float, raw: bool) -> None:
    model = headed_model(stored_head(DENSE, "F32", raw), dtype="F32", raw=raw)
    for name in ("q_norm", "k_norm"):
        model.head[f"mtp.layers.0.self_attn.{name}.weight"].value = applied - raw

    assert inspect_inline_head(model.write(tmp_path)).shift_norms == raw


def test_norms_that_are_not_numbers_are_noticed(tmp_path: Path) -> None:
    model = headed_model(stored_head(DENSE, "F32"), dtype="F32")
    model.head[Q_NORM] = Stored("F32", [HEAD_DIM], float("nan"))

    assert "a mean of nan" in refused(model.write(tmp_path)).detail


@pytest.mark.parametrize("value", [0.25, 2.27, 0.4937])
def test_no_other_norm_is_judged_by_its_size(tmp_path: Path, value: float) -> None:
    model = headed_model()
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding", "layers.0.input_layernorm"):
        model.head[f"mtp.{name}.weight"] = Stored("BF16", [64], value)

    inspect_inline_head(model.write(tmp_path))


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_bundled_head_is_refused_when_its_norms_are_shifted(tmp_path: Path, shift: int) -> None:
    """Of trained norms: their means are 1.5, half way between two layouts."""
    model = shutil.copytree(BUNDLED_MODEL_DIR, tmp_path / "model")
    shift_norms(model / HEAD, shift)

    assert "not near 1" in refused(model).detail


def test_a_trunk_that_cannot_be_read_leaves_the_layout_unknown(tmp_path: Path) -> None:
    (headed_model().write(tmp_path) / TRUNK).unlink()

    assert (refused(tmp_path).path, refused(tmp_path).detail[:10]) == (tmp_path / TRUNK, "is missing")


def test_a_trunk_of_another_type_is_refused(tmp_path: Path) -> None:
    model = headed_model()
    for name in ("embed_tokens", "norm"):
        model.files[TRUNK][f"language_model.model.{name}.weight"].dtype = "U8"

    assert "none of float32, bfloat16 and float16" in refused(model.write(tmp_path)).detail


# Right before it is loaded


def test_an_untouched_head_is_the_same_when_inspected_again(tmp_path: Path) -> None:
    head = inspect_inline_head(headed_model().write(tmp_path))

    assert reinspect(head) == head


def test_a_head_that_changed_in_the_meantime_is_refused(tmp_path: Path) -> None:
    model = headed_model()
    head = inspect_inline_head(model.write(tmp_path))
    for path in (tmp_path / "config.json", tmp_path / INDEX):
        content = path.read_text()
        path.write_text(content + " ")
        with pytest.raises(HeadInvalid, match="has changed since it was inspected"):
            reinspect(head)
        path.write_text(content)
    assert reinspect(head) == head

    write_tensors(tmp_path / HEAD, dict(reversed(model.head.items())))
    with pytest.raises(HeadInvalid, match="has changed since it was inspected"):
        reinspect(head)

    (tmp_path / HEAD).unlink()
    with pytest.raises(HeadInvalid, match="is missing"):
        reinspect(head)
