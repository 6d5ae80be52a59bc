"""What this machine is: its chip, and whose memory models occupy."""

import pytest

from provider.hardware import memory_in_use, memory_kind, parse_cpuinfo, read_hardware, read_system_memory

CPUINFO_X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9R14\ncpu MHz\t\t: 3700\n"
CPUINFO_ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(("text", "chip"), [(CPUINFO_X86, "AMD EPYC 9R14"), (CPUINFO_ARM, None), ("", None)])
def test_cpuinfo_names_the_chip_where_the_kernel_does(text: str, chip: str | None) -> None:
    assert parse_cpuinfo(text) == chip


@pytest.mark.parametrize(
    ("system", "machine", "gpu", "kind"),
    [
        ("Darwin", "arm64", None, "unified"),
        ("Linux", "x86_64", None, "host"),
        ("Linux", "x86_64", "NVIDIA H200", "discrete"),
        ("Linux", "aarch64", "NVIDIA GB10", "unified"),
    ],
)
def test_the_memory_kind_follows_from_chip_and_system(system: str, machine: str, gpu: str | None, kind: str) -> None:
    assert memory_kind(system, machine, gpu) == kind


def test_a_gpus_memory_counts_only_with_the_mlx_that_uses_it() -> None:
    assert memory_in_use("discrete", ["mlx", "mlx-cuda-13"]) == "discrete"
    assert memory_in_use("discrete", ["mlx", "mlx-cpu"]) == "host"
    assert memory_in_use("unified", ["mlx"]) == "unified"
    assert memory_in_use("host", ["mlx", "mlx-cuda-13"]) == "host"


def test_this_machine_can_be_read() -> None:
    found = read_hardware()

    assert found.physical_bytes is not None
    assert found.available_bytes is not None
    assert 0 < found.available_bytes <= found.physical_bytes
    assert found.cores is not None
    assert found.cores >= 1
    assert read_system_memory("host").available_bytes is not None
