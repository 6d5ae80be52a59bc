"""`bench activation` on a small model, as an operator runs it: a real engine in a process of its own."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from provider.hardware import read_hardware
from provider.local_floors import device_key, local_floors
from provider.models.checkpoint import read_checkpoint
from tests.fixtures.family_models import write_family
from tests.integration.processes import run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "small"
    return write_family(directory, "qwen3", mx.bfloat16, max_position_embeddings=300)


def test_a_measured_floor_is_installed_for_these_weights_on_this_machine(tmp_path: Path, model: Path) -> None:
    told = ("bench", "activation", "--model", str(model), "--install", "--json", "--data-dir", str(tmp_path))
    done = run(tmp_path / "log", *told)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    checkpoint = read_checkpoint(model)

    assert (said["model"], said["batch"]) == ("small", 8)
    assert said["prompt_tokens"] + said["output_tokens"] == 300
    # Less than eight whole contexts: the last chats have drawn less than the first.
    assert 0.8 < said["kv_bytes"] / (8 * 512 * checkpoint.kv_bytes_per_token) <= 1
    assert said["activation_bytes"] == max(said["prefill_bytes"], said["decode_bytes"], said["process_bytes"])
    # At the least a chunk's activations in the model's own width; at the most a small part of the machine.
    assert 256 * 64 * 2 < said["prefill_bytes"] < 2**28
    assert said["decode_bytes"] < said["prefill_bytes"]
    assert said["floor_bytes"] >= said["activation_bytes"] * 5 // 4
    device = device_key(read_hardware())
    assert local_floors(tmp_path, device, {"small": checkpoint}) == {"small": said["floor_bytes"]}


def test_a_model_that_sees_images_is_refused_by_name(tmp_path: Path, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    seeing = tmp_path / "seeing"
    seeing.mkdir()
    for file in model.iterdir():
        (seeing / file.name).symlink_to(file)
    (seeing / "config.json").unlink()
    (seeing / "config.json").write_text(json.dumps({**config, "vision_config": {"depth": 2}}))
    with_tower = mx.load(str(model / "model.safetensors")) | {"vision_tower.patch.weight": mx.zeros((2, 2))}
    (seeing / "model.safetensors").unlink()
    (seeing / "model.safetensors.index.json").unlink(missing_ok=True)
    mx.save_safetensors(str(seeing / "model.safetensors"), with_tower)
    done = run(tmp_path / "log", "bench", "activation", "--model", str(seeing), "--data-dir", str(tmp_path))

    assert done.returncode == 1
    assert "seeing sees images" in done.stderr
    assert not (tmp_path / "floors.json").exists()
