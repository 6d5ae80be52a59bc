"""Which floors a provider of a given release holds: what a coordinator charges where a provider does not report."""

import re
from collections.abc import Iterable, Mapping

from provider.memory.caps import GIB
from provider.memory.floors import DEFAULT_FLOOR_BYTES, Floor, floor

FLAT_BEFORE_0_8_0_BYTES = 3 * GIB
TABLE_SINCE = (0, 8, 16)


def release_of(version: str) -> tuple[int, int, int] | None:
    """`0.8.16-dev.3`, `0.8.16+local` and `v0.8.16` are the release 0.8.16; None for what names none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version.strip())
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def reserve_of_release(version: str, ids: Iterable[str], floors: Mapping[str, Floor]) -> int:
    """The reserve of a provider that runs `version` and serves `ids`."""
    release = release_of(version)
    if release is None or release < (0, 8, 0):
        return FLAT_BEFORE_0_8_0_BYTES
    if release < TABLE_SINCE:
        return DEFAULT_FLOOR_BYTES
    held = {id: one.floor_bytes for id, one in floors.items() if _holds(release, one)}
    return floor(ids, held)


def _holds(release: tuple[int, int, int], entry: Floor) -> bool:
    since = release_of(entry.since)
    return since is not None and release >= since
