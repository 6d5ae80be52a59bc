"""What a load of a model is charged with, from its files and the configuration."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from provider.catalog import Factory, LocalFiles
from provider.config import read_config
from provider.heads import choose_head
from provider.memory.requirement import Charge, padded_weights
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.mtp.head import ExternalHead
from provider.mtp.policy import Off
from provider.runner import InlineRunner

HEAD = "mtp-00001.safetensors"


class Nobody:
    def worker_given_up(self, model_id: str, self_test: bool) -> None: ...

    def worker_replaced(self, model_id: str) -> None: ...


@pytest.fixture(name="apart")
def model_and_head_apart(tmp_path: Path) -> tuple[Path, Path]:
    """The bundled model without its head, and that head."""
    trunk, head = tmp_path / "trunk", tmp_path / "head"
    shutil.copytree(BUNDLED_MODEL_DIR, trunk, ignore=shutil.ignore_patterns("mtp-*", "*.index.json"))
    config = json.loads((trunk / "config.json").read_text())
    del config["mtplx_mtp"]
    (trunk / "config.json").write_text(json.dumps(config))
    head.mkdir()
    shutil.copy(BUNDLED_MODEL_DIR / HEAD, head)
    return trunk, head


def factory(tmp_path: Path, mode: str, drafter: Path | None) -> Factory:
    flags = {"mtp_mode": mode, "mtp_drafter_path": None if drafter is None else str(drafter)}
    config = read_config(flags, data_dir=tmp_path, file=tmp_path / "none.toml", env={})
    return Factory(config, LocalFiles(), InlineRunner, Nobody(), lambda: 0.0)


def test_a_head_in_files_of_its_own_is_charged_beside_its_model(tmp_path: Path, apart: tuple[Path, Path]) -> None:
    trunk, head = apart
    model = factory(tmp_path, "on", head).create(str(trunk))
    size = model.checkpoint.size_bytes
    payload = model.charge.assistant_bytes
    assert 0 < payload <= (head / HEAD).stat().st_size
    assert model.charge.padded_bytes == padded_weights(size) + padded_weights(payload)
    for mode, drafter in (("auto", head), ("off", head), ("on", None), ("on", tmp_path / "nowhere")):
        assert factory(tmp_path, mode, drafter).create(str(trunk)).charge == Charge(size)


def test_a_head_inside_its_model_is_part_of_its_size(tmp_path: Path, apart: tuple[Path, Path]) -> None:
    trunk, head = apart
    within = factory(tmp_path, "on", head).create(str(BUNDLED_MODEL_DIR)).charge
    without = factory(tmp_path, "on", None).create(str(trunk)).charge
    assert within.assistant_bytes == 0
    assert within.size_bytes > without.size_bytes


def test_a_head_that_there_is_no_memory_for_is_left_out_and_said_so(tmp_path: Path, apart: tuple[Path, Path]) -> None:
    trunk, head = apart
    slot = factory(tmp_path, "on", head).create(str(trunk)).slot
    for allowed, expected in ((True, ExternalHead), (False, Off), (True, ExternalHead)):
        slot.allow_drafter(allowed)
        spec = msgspec.msgpack.decode(msgspec.msgpack.encode(slot.spec.drafts), type=type(slot.spec.drafts))
        choice = choose_head(trunk, spec)
        assert isinstance(choice, expected)
        if isinstance(choice, Off):
            assert choice.reason == "assistant_memory_unavailable"
