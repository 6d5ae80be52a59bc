"""Three answers to whether a checkpoint declares a head, whatever its config.json holds."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from provider.mtp.policy import Declaration
from provider.mtp.probe import probe, probe_config

HEADED = {"model_type": "qwen3_5", "mtplx_mtp": {"included": True}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (HEADED, Declaration.DECLARED),
        ({**HEADED, "mtplx_mtp": {"included": True, "prefix": 7}}, Declaration.DECLARED),
        ({**HEADED, "mtplx_mtp": {"included": False}}, Declaration.ABSENT),
        ({**HEADED, "mtplx_mtp": {"included": 1}}, Declaration.ABSENT),
        ({**HEADED, "mtplx_mtp": {"included": "true"}}, Declaration.ABSENT),
        ({**HEADED, "mtplx_mtp": {}}, Declaration.ABSENT),
        ({**HEADED, "mtplx_mtp": True}, Declaration.ABSENT),
        ({**HEADED, "mtplx_mtp": None}, Declaration.ABSENT),
        ({"model_type": "qwen3_5", "text_config": {"mtplx_mtp": {"included": True}}}, Declaration.ABSENT),
        ({"model_type": "qwen3_5", "mtplx_mtp_quantization": {}}, Declaration.ABSENT),
        ({}, Declaration.ABSENT),
    ],
)
def test_a_config_that_can_be_read_declares_a_head_or_does_not(
    tmp_path: Path, config: dict[str, Any], expected: Declaration
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert probe(tmp_path) == probe_config(config)
    assert probe(tmp_path).declaration is expected
    assert probe(tmp_path).model_type == config.get("model_type", "")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b'"mtplx_mtp"', b"\xff\xfe", b"[" * 200_000])
def test_what_is_no_object_is_undeterminable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    found = probe(tmp_path)

    assert (found.declaration, found.model_type) == (Declaration.UNDETERMINABLE, None)
    assert "config.json" in found.detail


def test_a_missing_config_is_undeterminable(tmp_path: Path) -> None:
    assert probe(tmp_path).declaration is Declaration.UNDETERMINABLE
    assert probe(tmp_path / "absent").declaration is Declaration.UNDETERMINABLE


def test_a_directory_or_a_pipe_in_its_place_is_undeterminable_and_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "one" / "config.json").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    os.mkfifo(tmp_path / "two" / "config.json")

    assert probe(tmp_path / "one").declaration is Declaration.UNDETERMINABLE
    assert probe(tmp_path / "two").declaration is Declaration.UNDETERMINABLE


def test_the_limit_is_64_mib_and_looser_than_the_inspections(tmp_path: Path) -> None:
    config, raw = tmp_path / "config.json", json.dumps(HEADED)
    config.write_text(raw + " " * (64 * 2**20 - len(raw)))
    assert probe(tmp_path).declaration is Declaration.DECLARED

    config.write_text(raw + " " * (64 * 2**20 - len(raw) + 1))
    assert probe(tmp_path).declaration is Declaration.UNDETERMINABLE
    assert "64 MiB" in probe(tmp_path).detail


@pytest.mark.parametrize(
    ("change", "drafts"),
    [
        ({}, 2),
        ({"mtplx_mtp": {"included": True, "block_size": 8}}, 7),
        ({"mtplx_mtp": {"included": True, "block_size": 9}}, 0),
        ({"mtplx_mtp": {"included": True, "prefix": 7}}, 0),
        ({"mtplx_mtp": {"included": False}}, 0),
        ({"mtplx_mtp_quantization": None}, 0),
        ({"mtp_num_hidden_layers": 2}, 0),
        ({"model_type": "llama"}, 0),
    ],
)
def test_how_many_drafts_a_declared_head_makes_is_known_without_it(change: dict[str, Any], drafts: int) -> None:
    sound = {**HEADED, "mtp_num_hidden_layers": 1, "mtplx_mtp_quantization": {}}
    assert probe_config({**sound, **change}).drafts == drafts
