"""Memory limits of control groups, version 2 and version 1: what a container may take of its machine."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from provider.readings import ReadText, integer


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """One control group's limit, and what it has charged that cannot be reclaimed at once. `file_cache_bytes`: clean
    pages of files, which are charged and can be."""

    limit_bytes: int
    used_bytes: int
    file_cache_bytes: int = 0

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def cgroup_memory(read: ReadText) -> Iterator[CgroupMemory]:
    """Every limit on this process's way up to the root, of cgroup v2 and v1.

    Inside a container the path of /proc/self/cgroup may be the host's and not exist; its mounted root then
    carries the limit.
    """
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _limits(read, "/sys/fs/cgroup", path, "memory.max", "memory.current", _VERSION_2)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _limits(read, "/sys/fs/cgroup/memory", path, *names, _VERSION_1)


@dataclass(frozen=True, slots=True)
class _StatNames:
    """Of memory.stat: pages of files, and those among them that have to be written first."""

    cache: tuple[str, ...]
    unwritten: tuple[str, ...]

    def clean_cache(self, stat: str) -> int:
        return max(0, _sum(stat, self.cache) - _sum(stat, self.unwritten))


_VERSION_2 = _StatNames(("inactive_file", "active_file"), ("file_dirty", "file_writeback"))
_VERSION_1 = _StatNames(("total_inactive_file", "total_active_file"), ("total_dirty", "total_writeback"))


def _limits(
    read: ReadText, root: str, path: str, limit_file: str, usage_file: str, names: _StatNames
) -> Iterator[CgroupMemory]:
    group = PurePosixPath(path)
    for ancestor in (group, *group.parents):
        directory = f"{root}{ancestor}".rstrip("/")
        limit = integer(read(f"{directory}/{limit_file}"))
        usage = integer(read(f"{directory}/{usage_file}"))
        if limit is None or usage is None:  # "max", or no such group from here
            continue
        cache = min(usage, names.clean_cache(read(f"{directory}/memory.stat") or ""))
        yield CgroupMemory(limit, usage - cache, cache)


def _sum(stat: str, names: tuple[str, ...]) -> int:
    found = (re.search(rf"^{name} (\d+)$", stat, re.MULTILINE) for name in names)
    return sum(int(one[1]) for one in found if one is not None)
