"""Readings of real machines, as text, and what is made of them."""

from collections.abc import Mapping

import pytest

from provider.hardware import (
    ReadText,
    cgroup_memory,
    memory_kind,
    parse_cpuinfo,
    parse_meminfo,
    parse_sysctl,
    parse_vm_stat,
    read_available_bytes,
    read_hardware,
)

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               52342.
Pages active:                            512913.
Pages inactive:                          498217.
Pages speculative:                         9132.
Pages throttled:                              0.
Pages wired down:                        203811.
Pages purgeable:                          12290.
"Translation faults":                 812345678.
Pages copy-on-write:                   12345678.
"""
SYSCTL = "machdep.cpu.brand_string: Apple M2 Max\nhw.memsize: 34359738368\nhw.ncpu: 12\n"
MEMINFO = """\
MemTotal:       24684092 kB
MemFree:        23852592 kB
MemAvailable:   24271820 kB
Buffers:            9412 kB
HugePages_Total:       0
"""
CPUINFO_X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9R14\ncpu MHz\t\t: 3700\n"
CPUINFO_ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU part\t: 0xd40\n"


def files(contents: Mapping[str, str]) -> ReadText:
    return contents.get


def test_vm_stat_counts_free_inactive_and_purgeable_pages() -> None:
    assert parse_vm_stat(VM_STAT) == 16384 * (52342 + 498217 + 12290)


@pytest.mark.parametrize("text", ["", "vm_stat: command not found", "page size of 16384 bytes"])
def test_an_unreadable_vm_stat_is_unknown_and_not_zero(text: str) -> None:
    assert parse_vm_stat(text) is None


def test_sysctl_lines_are_names_and_values() -> None:
    assert parse_sysctl(SYSCTL)["machdep.cpu.brand_string"] == "Apple M2 Max"
    assert parse_sysctl(SYSCTL)["hw.memsize"] == "34359738368"
    assert parse_sysctl("sysctl: unknown oid 'x'\n").get("x") is None


def test_meminfo_is_in_bytes() -> None:
    assert parse_meminfo(MEMINFO) == {
        "MemTotal": 24684092 * 1024,
        "MemFree": 23852592 * 1024,
        "MemAvailable": 24271820 * 1024,
        "Buffers": 9412 * 1024,
    }


@pytest.mark.parametrize(("text", "chip"), [(CPUINFO_X86, "AMD EPYC 9R14"), (CPUINFO_ARM, None), ("", None)])
def test_cpuinfo_names_the_chip_where_the_kernel_does(text: str, chip: str | None) -> None:
    assert parse_cpuinfo(text) == chip


def test_a_version_2_limit_leaves_out_reclaimable_file_cache() -> None:
    read = files(
        {
            "/proc/self/cgroup": "0::/system.slice/docker-1.scope\n",
            "/sys/fs/cgroup/system.slice/docker-1.scope/memory.max": "8589934592\n",
            "/sys/fs/cgroup/system.slice/docker-1.scope/memory.current": "3221225472\n",
            "/sys/fs/cgroup/system.slice/docker-1.scope/memory.stat": "anon 1\ninactive_file 1073741824\n",
            "/sys/fs/cgroup/system.slice/memory.max": "max\n",
            "/sys/fs/cgroup/system.slice/memory.current": "9221225472\n",
        }
    )
    (limit,) = cgroup_memory(read)

    assert (limit.limit_bytes, limit.used_bytes) == (8 * 2**30, 2 * 2**30)
    assert limit.available_bytes == 6 * 2**30


def test_a_parent_groups_limit_counts_too() -> None:
    read = files(
        {
            "/proc/self/cgroup": "0::/a/b\n",
            "/sys/fs/cgroup/a/b/memory.max": "300",
            "/sys/fs/cgroup/a/b/memory.current": "10",
            "/sys/fs/cgroup/a/memory.max": "200",
            "/sys/fs/cgroup/a/memory.current": "150",
        }
    )
    assert min(one.limit_bytes for one in cgroup_memory(read)) == 200
    assert min(one.available_bytes for one in cgroup_memory(read)) == 50


def test_a_version_1_container_reads_the_limit_at_its_mounted_root() -> None:
    read = files(
        {
            "/proc/self/cgroup": "12:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824\n",
            "/sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1073741824\n",
        }
    )
    (limit,) = cgroup_memory(read)

    assert (limit.limit_bytes, limit.used_bytes) == (4 * 2**30, 0)


def test_no_control_group_limits_nothing() -> None:
    assert list(cgroup_memory(files({}))) == []


def test_a_group_beyond_its_limit_has_nothing_left() -> None:
    read = files(
        {
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/memory.max": "100",
            "/sys/fs/cgroup/memory.current": "130",
        }
    )
    assert [one.available_bytes for one in cgroup_memory(read)] == [0]


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


def test_this_machine_can_be_read() -> None:
    found = read_hardware()

    assert found.physical_bytes is not None
    assert found.available_bytes is not None
    assert 0 < found.available_bytes <= found.physical_bytes
    assert found.cores is not None
    assert found.cores >= 1
    assert read_available_bytes() is not None
