"""From a directory and a configuration to a sound head or a reason, and heads in directories of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from provider.errors import HeadInvalid
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.mtp.external import inspect_external_head
from provider.mtp.head import ExternalHead, InlineHead
from provider.mtp.policy import Declaration, Mode, Off, Reason
from provider.mtp.probe import Probe, probe
from provider.mtp.verdict import Verdict, judge
from tests.fixtures.heads import DENSE, HEAD, SPLIT, Stored, headed_model, packed, stored_head, write_tensors

MXFP8 = {"group_size": 32, "bits": 8, "mode": "mxfp8"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A checkpoint of the family that declares no head."""
    model = headed_model()
    del model.files[HEAD]
    del model.config["mtplx_mtp"], model.config["mtplx_mtp_quantization"]
    assert model.index is not None
    model.index["weight_map"] = {name: file for name, file in model.weight_map.items() if file != HEAD}
    return model.write(tmp_path / "target")


def write_head(
    directory: Path, tensors: dict[str, Stored], prefix: str = "mtp.", config: dict[str, Any] | None = None
) -> Path:
    directory.mkdir()
    write_tensors(directory / "model.safetensors", {f"{prefix}{name}": one for name, one in tensors.items()})
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def judged(directory: Path, mode: Mode = "auto", **told: Any) -> Verdict:
    return judge(directory, probe(directory), mode=mode, **{"killed": False, **told})


# The verdict


def test_an_embedded_head_that_is_sound_will_be_drafted_with() -> None:
    verdict = judged(BUNDLED_MODEL_DIR)

    assert isinstance(verdict.choice, InlineHead)
    assert (verdict.declaration, verdict.active, verdict.reason, verdict.detail) == (
        Declaration.DECLARED,
        True,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("told", "reason"),
    [({"killed": True}, Reason.KILL_SWITCH_DISABLED), ({"mode": "off"}, Reason.CONFIG_DISABLED)],
)
def test_what_is_switched_off_is_not_even_inspected(tmp_path: Path, told: dict[str, Any], reason: Reason) -> None:
    """The directory is empty: an inspection would say so."""
    verdict = judge(tmp_path, Probe(Declaration.DECLARED, "qwen3_5", ""), **{"killed": False, **told})

    assert (verdict.active, verdict.reason) == (False, reason)


def test_a_broken_embedded_head_never_falls_through_to_an_external_one(tmp_path: Path) -> None:
    external = write_head(tmp_path / "head", stored_head(DENSE))
    model = headed_model()
    model.drop("mtp.norm.weight")
    verdict = judged(model.write(tmp_path / "model"), "on", drafter_path=external)

    assert verdict.reason is Reason.INLINE_ARTIFACT_INVALID
    assert verdict.detail == f"{tmp_path / 'model' / 'model.safetensors.index.json'}: the head lacks norm.weight"


def test_a_probe_that_found_nothing_out_leads_to_the_inspections_answer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    verdict = judged(tmp_path)

    assert (verdict.declaration, verdict.reason) == (Declaration.UNDETERMINABLE, Reason.INLINE_ARTIFACT_INVALID)
    assert verdict.detail is not None
    assert "config.json: is not usable JSON" in verdict.detail


def test_a_config_between_the_two_limits_is_a_declaration_and_then_refused(tmp_path: Path) -> None:
    config = headed_model().write(tmp_path) / "config.json"
    config.write_text(config.read_text() + " " * 2**20)
    verdict = judged(tmp_path)

    assert (verdict.declaration, verdict.reason) == (Declaration.DECLARED, Reason.INLINE_ARTIFACT_INVALID)


def test_the_probes_answer_is_used_as_it_was_given(target: Path) -> None:
    """A config that changes in the meantime cannot turn drafting on: what is inspected is what was probed."""
    found = probe(target)
    (target / "config.json").write_text(json.dumps(headed_model().config))

    assert judge(target, found, killed=False).reason is Reason.CONFIG_DISABLED


def test_an_external_head_is_for_mode_on_alone(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", stored_head(DENSE))

    assert judged(target, drafter_path=head).reason is Reason.CONFIG_DISABLED
    assert isinstance(judged(target, "on", drafter_path=head).choice, ExternalHead)
    assert judged(target, "on").choice == Off(
        Reason.CONFIG_DISABLED, "the checkpoint embeds no head, and mtp_drafter_path names no other"
    )


# External heads


@pytest.mark.parametrize("prefix", ["", "mtp.", "language_model.mtp."])
def test_an_external_head_comes_with_the_prefix_or_without(target: Path, tmp_path: Path, prefix: str) -> None:
    head = inspect_external_head(write_head(tmp_path / "head", stored_head(DENSE), prefix), target)

    assert (head.prefix, set(head.tensors), head.block_size) == (prefix, set(DENSE), 3)
    assert (head.shift_norms, head.config_digest, head.index_digest) == (False, "", "")


def test_an_external_head_is_charged_six_fifths_rounded_up(target: Path, tmp_path: Path) -> None:
    head = inspect_external_head(write_head(tmp_path / "head", stored_head(DENSE)), target)

    payload = sum(len(one.payload) for one in stored_head(DENSE).values())
    assert (head.payload_bytes, head.additional_bytes) == (payload, -(-payload * 6 // 5))
    assert head.additional_bytes * 5 >= payload * 6 > (head.additional_bytes - 1) * 5


@pytest.mark.parametrize(
    "config",
    [
        {"block_size": 5, "quantization": MXFP8},
        {"block_size": 5, "mtplx_mtp_quantization": MXFP8},
        {"mtplx_mtp": {"block_size": 5}, "mtplx_mtp_quantization": MXFP8, "quantization": {"bits": 4}},
    ],
)
def test_its_config_says_how_it_is_packed_and_its_block_size(
    target: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    stored = packed(stored_head(DENSE), 32, 8, "mxfp8")
    head = inspect_external_head(write_head(tmp_path / "head", stored, config=config), target)

    assert (head.block_size, len(head.packings)) == (5, 8)
    assert head.config_digest


def test_it_is_in_mlxs_layout_whatever_its_targets(tmp_path: Path) -> None:
    model = headed_model(raw=True)
    target = model.write(tmp_path / "target")
    sound = write_head(tmp_path / "sound", stored_head(DENSE))
    raw = write_head(tmp_path / "raw", stored_head(DENSE, raw=True))

    assert not inspect_external_head(sound, target).shift_norms
    with pytest.raises(HeadInvalid, match="not near 1") as caught:
        inspect_external_head(raw, target)
    assert caught.value.reason is Reason.LOCAL_ARTIFACT_INVALID


@pytest.mark.parametrize(
    ("shapes", "detail"),
    [
        ({**DENSE, "fc.weight": [96, 192]}, "fc.weight has the shape"),
        ({**DENSE, "layers.0.mlp.up_proj.weight": [64, 64]}, "up_proj.weight has the shape"),
        (SPLIT, "the head has experts, and its target none"),
    ],
)
def test_a_head_of_another_target_is_incompatible(
    target: Path, tmp_path: Path, shapes: dict[str, list[int]], detail: str
) -> None:
    head = write_head(tmp_path / "head", stored_head(shapes))
    with pytest.raises(HeadInvalid, match=detail) as caught:
        inspect_external_head(head, target)

    assert caught.value.reason is Reason.ASSISTANT_TARGET_INCOMPATIBLE


@pytest.mark.parametrize(
    ("tensors", "config", "detail"),
    [
        ({}, None, "lists no tensor"),
        ({name: one for name, one in stored_head(DENSE).items() if name != "fc.weight"}, None, "the head lacks fc"),
        ({**stored_head(DENSE), "lm_head.weight": Stored("BF16", [8, 64])}, None, "the head has lm_head.weight"),
        (packed(stored_head(DENSE), 32, 8, "mxfp8"), None, "does not say how it is packed"),
        (stored_head(DENSE), {"block_size": 1}, "block_size must be"),
        (stored_head(DENSE), {"quantization": 4}, "must be an object"),
    ],
)
def test_an_external_head_that_is_not_sound_is_refused(
    target: Path, tmp_path: Path, tensors: dict[str, Stored], config: dict[str, Any] | None, detail: str
) -> None:
    head = write_head(tmp_path / "head", tensors, config=config)
    with pytest.raises(HeadInvalid, match=detail) as caught:
        inspect_external_head(head, target)

    assert caught.value.reason is Reason.LOCAL_ARTIFACT_INVALID


def test_its_place_must_be_a_directory_with_files_of_a_head(target: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", target / "config.json", tmp_path):
        with pytest.raises(HeadInvalid) as caught:
            inspect_external_head(path, target)
        assert (caught.value.reason, caught.value.path) == (Reason.LOCAL_ARTIFACT_INVALID, path)

    many = tmp_path / "many"
    many.mkdir()
    for number in range(65):
        write_tensors(many / f"{number}.safetensors", {})
    with pytest.raises(HeadInvalid, match=r"has 65 \*\.safetensors files"):
        inspect_external_head(many, target)


def test_a_tensor_in_two_files_is_refused(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", stored_head(DENSE))
    write_tensors(head / "other.safetensors", {"mtp.norm.weight": Stored("BF16", [64], 1.0)})

    with pytest.raises(HeadInvalid, match="holds a tensor in two files"):
        inspect_external_head(head, target)
