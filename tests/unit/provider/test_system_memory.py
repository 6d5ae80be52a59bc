"""Readings of real machines, as text, and what is made of them."""

from collections.abc import Mapping

import pytest

from provider.cgroup import cgroup_memory
from provider.readings import ReadText
from provider.system_memory import (
    NVIDIA_QUERY,
    STALE_S,
    MemoryReader,
    Pressure,
    SystemMemory,
    mac_pressure,
    nvidia_query,
    parse_meminfo,
    parse_nvidia_smi,
    parse_pressure,
    parse_sysctl,
    parse_vm_stat,
    read_linux,
    vm_stat_file_cache,
)

GIB = 2**30
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
File-backed pages:                       301222.
Anonymous pages:                         718040.
"""
SYSCTL = "machdep.cpu.brand_string: Apple M2 Max\nhw.memsize: 34359738368\nhw.ncpu: 12\n"
MEMINFO = """\
MemTotal:       24684092 kB
MemFree:        13852592 kB
MemAvailable:   22271820 kB
Buffers:            9412 kB
Active(file):    2000000 kB
Inactive(file):  6000000 kB
Dirty:            100000 kB
Writeback:         20000 kB
HugePages_Total:       0
"""
PSI_IDLE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
PSI_BUSY = "some avg10=23.10 avg60=4.00 avg300=1.00 total=9\nfull avg10=2.40 avg60=0.00 avg300=0.00 total=1\n"
PSI_THRASHING = "some avg10=80.00 avg60=9.00 avg300=1.00 total=9\nfull avg10=61.00 avg60=0.00 avg300=0.00 total=1\n"


def files(contents: Mapping[str, str]) -> ReadText:
    return contents.get


def limited(maximum: str, current: str, stat: str, meminfo: str = MEMINFO) -> ReadText:
    """A machine whose control group has these files."""
    return files(
        {
            "/proc/meminfo": meminfo,
            "/proc/pressure/memory": PSI_IDLE,
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/memory.max": maximum,
            "/sys/fs/cgroup/memory.current": current,
            "/sys/fs/cgroup/memory.stat": stat,
        }
    )


def test_vm_stat_counts_free_read_ahead_inactive_and_purgeable_pages() -> None:
    assert parse_vm_stat(VM_STAT) == 16384 * (52342 + 9132 + 498217 + 12290)


def test_vm_stat_tells_the_pages_of_files() -> None:
    assert vm_stat_file_cache(VM_STAT) == 16384 * 301222


@pytest.mark.parametrize("text", ["", "vm_stat: command not found", "page size of 16384 bytes"])
def test_an_unreadable_vm_stat_is_unknown_and_not_zero(text: str) -> None:
    assert parse_vm_stat(text) is None
    assert vm_stat_file_cache(text) is None


def test_sysctl_lines_are_names_and_values() -> None:
    assert parse_sysctl(SYSCTL)["machdep.cpu.brand_string"] == "Apple M2 Max"
    assert parse_sysctl(SYSCTL)["hw.memsize"] == "34359738368"
    assert parse_sysctl("sysctl: unknown oid 'x'\n").get("x") is None


def test_meminfo_is_in_bytes() -> None:
    found = parse_meminfo(MEMINFO)

    assert found["MemTotal"] == 24684092 * 1024
    assert found["Inactive(file)"] == 6000000 * 1024
    assert "HugePages_Total" not in found


@pytest.mark.parametrize(
    ("level", "pressure"),
    [("1", Pressure.NORMAL), ("2", Pressure.WARNING), ("4", Pressure.CRITICAL), ("3", None), (None, None)],
)
def test_a_mac_tells_its_pressure_in_the_kernels_numbers(level: str | None, pressure: Pressure | None) -> None:
    assert mac_pressure(level) is pressure


@pytest.mark.parametrize(
    ("text", "pressure"),
    [
        (PSI_IDLE, Pressure.NORMAL),
        (PSI_BUSY, Pressure.WARNING),
        (PSI_THRASHING, Pressure.CRITICAL),
        ("", None),
        ("some avg10=nonsense", None),
    ],
)
def test_linux_tells_its_pressure_by_how_long_tasks_stalled(text: str, pressure: Pressure | None) -> None:
    assert parse_pressure(text) is pressure


def test_the_worse_pressure_of_machine_and_container_counts() -> None:
    machine = {"/proc/meminfo": MEMINFO, "/proc/pressure/memory": PSI_IDLE}

    assert read_linux(0.0, files(machine)).pressure is Pressure.NORMAL
    container = {**machine, "/sys/fs/cgroup/memory.pressure": PSI_THRASHING}
    assert read_linux(0.0, files(container)).pressure is Pressure.CRITICAL
    assert read_linux(0.0, files({"/proc/meminfo": MEMINFO})).pressure is None


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("143771, 143249\n", (143771 * 2**20, 143249 * 2**20)),
        ("24564, 0\n24564, 24100\n", (24564 * 2**20, 0)),
        ("[N/A], [N/A]\n", None),  # chips that share the machine's memory
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", None),
        ("", None),
    ],
)
def test_the_driver_tells_the_first_gpus_memory_in_mib(text: str, bytes_: tuple[int, int] | None) -> None:
    assert parse_nvidia_smi(text) == bytes_


@pytest.mark.parametrize(
    ("visible", "asked"),
    [(None, ()), ("", ()), ("1", ("-i", "1")), ("2,0", ("-i", "2")), (" GPU-5f ,1", ("-i", "GPU-5f"))],
)
def test_the_gpu_that_is_read_is_the_one_that_mlx_uses(visible: str | None, asked: tuple[str, ...]) -> None:
    assert nvidia_query(visible) == (*NVIDIA_QUERY, *asked)


def test_a_version_2_limit_leaves_out_clean_file_cache() -> None:
    read = files(
        {
            "/proc/self/cgroup": "0::/system.slice/docker-1.scope\n",
            "/sys/fs/cgroup/system.slice/docker-1.scope/memory.max": f"{8 * GIB}\n",
            "/sys/fs/cgroup/system.slice/docker-1.scope/memory.current": f"{5 * GIB}\n",
            "/sys/fs/cgroup/system.slice/docker-1.scope/memory.stat": (
                f"anon 1\ninactive_file {2 * GIB}\nactive_file {GIB}\nfile_dirty {GIB // 2}\nfile_writeback 0\n"
            ),
            "/sys/fs/cgroup/system.slice/memory.max": "max\n",
            "/sys/fs/cgroup/system.slice/memory.current": f"{9 * GIB}\n",
        }
    )
    (limit,) = cgroup_memory(read)

    assert (limit.limit_bytes, limit.file_cache_bytes, limit.used_bytes) == (8 * GIB, 5 * GIB // 2, 5 * GIB // 2)
    assert limit.available_bytes == 11 * GIB // 2


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
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "/sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
        }
    )
    (limit,) = cgroup_memory(read)

    assert (limit.limit_bytes, limit.used_bytes) == (4 * GIB, 0)


def test_no_control_group_limits_nothing() -> None:
    assert list(cgroup_memory(files({}))) == []


def test_a_group_beyond_its_limit_has_nothing_left() -> None:
    assert [one.available_bytes for one in cgroup_memory(limited("100", "130", ""))] == [0]


def test_hashing_the_weights_takes_nothing_from_what_is_available() -> None:
    """The files that were read stay in the cache: charged, and given back when somebody asks."""
    before = read_linux(0.0, limited(f"{16 * GIB}", f"{2 * GIB}", f"inactive_file {GIB}\nactive_file 0\n"))
    once = read_linux(0.0, limited(f"{16 * GIB}", f"{14 * GIB}", f"inactive_file {13 * GIB}\nactive_file 0\n"))
    twice = read_linux(0.0, limited(f"{16 * GIB}", f"{14 * GIB}", f"inactive_file 0\nactive_file {13 * GIB}\n"))

    assert before.available_bytes == once.available_bytes == twice.available_bytes == 15 * GIB
    assert (before.file_cache_bytes, twice.file_cache_bytes) == (GIB, 13 * GIB)


def test_a_container_is_no_larger_than_its_machine() -> None:
    found = read_linux(0.0, limited(f"{512 * GIB}", "0", ""))

    assert found.physical_bytes == 24684092 * 1024
    assert found.available_bytes == 22271820 * 1024
    assert found.file_cache_bytes == (8000000 - 120000) * 1024


def test_a_reading_is_stale_after_its_time() -> None:
    found = SystemMemory(physical_bytes=1, available_bytes=None, pressure=None, read_at_s=100.0)

    assert found.age_s(101.5) == 1.5
    assert not found.is_stale(100.0 + STALE_S)
    assert found.is_stale(100.1 + STALE_S)


def test_this_machine_can_be_read() -> None:
    found = MemoryReader("host").read()

    assert found.physical_bytes is not None
    assert found.available_bytes is not None
    assert 0 < found.available_bytes <= found.physical_bytes
