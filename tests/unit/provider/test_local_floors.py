"""Floors measured on a machine: for which weights, on which device, and never for what sees images."""

from dataclasses import replace
from pathlib import Path

import pytest

from provider.bench.activation import BATCH, MIB, PROMPT_TOKENS, Measured, lengths_for
from provider.hardware import Hardware
from provider.local_floors import LocalFloor, device_key, install, local_floors, read_floors
from provider.models.checkpoint import Checkpoint, read_checkpoint
from tests.fixtures.checkpoints import write_model

DEVICE = "unified: Apple M2 Max"
GIB = 2**30


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return read_checkpoint(write_model(tmp_path / "model"))


def entry(checkpoint: Checkpoint, floor_bytes: int = GIB, device: str = DEVICE) -> LocalFloor:
    return LocalFloor(
        model="mine",
        weight_digest=checkpoint.digest(),
        size_bytes=checkpoint.size_bytes,
        device=device,
        floor_bytes=floor_bytes,
        activation_bytes=floor_bytes // 2,
        measured_on="2026-11-29",
    )


def test_a_floor_is_found_again_under_whatever_id_the_weights_are_served(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    install(tmp_path, entry(checkpoint))

    assert local_floors(tmp_path, DEVICE, {"a": checkpoint, "b": checkpoint}) == {"a": GIB, "b": GIB}


def test_measuring_again_replaces_the_floor(tmp_path: Path, checkpoint: Checkpoint) -> None:
    install(tmp_path, entry(checkpoint, GIB))
    install(tmp_path, entry(checkpoint, 7, device="host: AMD EPYC"))
    install(tmp_path, entry(checkpoint, 2 * GIB))

    assert local_floors(tmp_path, DEVICE, {"a": checkpoint}) == {"a": 2 * GIB}
    assert len(read_floors(tmp_path)) == 2


def test_a_floor_of_another_device_does_not_hold_here(tmp_path: Path, checkpoint: Checkpoint) -> None:
    install(tmp_path, entry(checkpoint, device="unified: Apple M1"))

    assert local_floors(tmp_path, DEVICE, {"a": checkpoint}) == {}


def test_a_floor_does_not_hold_for_other_weights_of_the_same_size(tmp_path: Path, checkpoint: Checkpoint) -> None:
    install(tmp_path, entry(checkpoint))
    (weights,) = checkpoint.directory.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    assert local_floors(tmp_path, DEVICE, {"a": checkpoint}) == {}


def test_what_sees_images_has_no_local_floor(tmp_path: Path, checkpoint: Checkpoint) -> None:
    install(tmp_path, entry(checkpoint))

    assert local_floors(tmp_path, DEVICE, {"a": replace(checkpoint, vision=True)}) == {}


@pytest.mark.parametrize(
    "content", [None, "", "{", '{"floors": [{"model": "x"}]}', '{"floors": 3}', '{"floors": [{"floor_bytes": -1}]}']
)
def test_a_file_that_cannot_be_used_is_as_if_nothing_were_measured(
    tmp_path: Path, checkpoint: Checkpoint, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "floors.json").write_text(content)

    assert local_floors(tmp_path, DEVICE, {"a": checkpoint}) == {}


@pytest.mark.parametrize(
    ("chip", "key"), [("Apple M2 Max", "unified: Apple M2 Max"), (None, "unified: arm64")], ids=["named", "unnamed"]
)
def test_a_device_is_its_kind_of_memory_and_its_chip(chip: str | None, key: str) -> None:
    hardware = Hardware(
        system="Darwin",
        machine="arm64",
        python="3.12",
        chip=chip,
        cores=8,
        physical_bytes=None,
        available_bytes=None,
        memory_kind="unified",
    )
    assert device_key(hardware) == key


@pytest.mark.parametrize(
    ("prefill", "decode", "process", "floor_mib"),
    [
        (100 * MIB, MIB, 0, 125),
        (MIB, 100 * MIB, 2, 125),
        (1, 2, 100 * MIB, 125),
        (100 * MIB + 1, 0, 0, 126),
        (1, 0, 0, 1),
    ],
)
def test_a_floor_is_the_largest_figure_and_a_quarter_more(
    prefill: int, decode: int, process: int, floor_mib: int
) -> None:
    measured = Measured(
        device="cpu: x",
        batch=BATCH,
        prompt_tokens=4096,
        output_tokens=96,
        active_bytes=1,
        kv_bytes=1,
        prefill_bytes=prefill,
        decode_bytes=decode,
        process_bytes=process,
    )
    assert measured.floor_bytes == floor_mib * MIB


@pytest.mark.parametrize("context", [2, 64, 300, 1024, 4096, 4200, 32768])
def test_the_first_chat_is_still_running_when_the_last_prompt_is_done(context: int) -> None:
    lengths = lengths_for(context, chunk_tokens=512)

    assert lengths.prompt_tokens + lengths.output_tokens <= context
    assert 0 < lengths.prompt_tokens <= PROMPT_TOKENS
    chunks = BATCH * -(-lengths.prompt_tokens // 512)
    assert lengths.output_tokens > chunks or context <= 64  # a context that is too short for eight chats at once
    assert lengths.prompt_tokens == PROMPT_TOKENS or lengths.prompt_tokens + lengths.output_tokens == context
