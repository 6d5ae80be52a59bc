"""The driver's tool as a real command, found on the path."""

import sys
from pathlib import Path

import pytest

from provider.probes import MlxOutcome
from provider.system_memory import read_system_memory
from provider.thermal import read_thermal
from provider.this_machine import read_memory

TOOL = """\
#!/bin/sh
case "$*" in
  *thermal*) echo "Not Active, Active" ;;
  *"-i 1"*) echo "24564, 24000" ;;
  *) echo "143771, 140000"; echo "24564, 24000" ;;
esac
"""
MIB = 2**20


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    tool = directory / "nvidia-smi"
    tool.write_text(script)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_a_discrete_gpus_own_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, TOOL)
    first, second = (
        read_system_memory("discrete", env={}),
        read_system_memory("discrete", env={"CUDA_VISIBLE_DEVICES": "1,0"}),
    )

    assert (first.physical_bytes, first.available_bytes) == (143771 * MIB, 140000 * MIB)
    assert (second.physical_bytes, second.available_bytes) == (24564 * MIB, 24000 * MIB)
    assert first.file_cache_bytes is None


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho '[N/A], [N/A]'\n", "no program\n"])
def test_a_driver_that_does_not_answer_leaves_the_memory_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    install(tmp_path, monkeypatch, script)
    found = read_system_memory("discrete", env={})

    assert (found.physical_bytes, found.available_bytes) == (None, None)


def test_mlx_is_believed_where_the_driver_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlx = MlxOutcome("gpu: NVIDIA H200", True, None, total_bytes=100, free_bytes=90)
    install(tmp_path, monkeypatch, "#!/bin/sh\nexit 9\n")
    found = read_memory("discrete", mlx)
    assert (found.physical_bytes, found.available_bytes) == (100, 90)

    install(tmp_path, monkeypatch, TOOL)
    assert read_memory("discrete", mlx).physical_bytes != 100
    assert read_memory("host", mlx).physical_bytes not in (None, 100)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has no discrete NVIDIA GPU")
def test_a_gpu_that_is_slowed_down_for_its_heat_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, TOOL)

    assert read_thermal("discrete") != "nominal"
