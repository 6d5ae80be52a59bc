"""What a provider of a given release charges, where it does not say."""

import pytest

from provider.memory.caps import GIB
from provider.memory.floors import SHIPPED_FLOORS, Floor
from provider.memory.regimes import release_of, reserve_of_release

DEMO = SHIPPED_FLOORS["darkbloom-demo"].floor_bytes / GIB


@pytest.mark.parametrize(
    ("version", "ids", "size"),
    [
        ("", ["gpt-oss-20b"], 3.0),
        ("unknown", ["gpt-oss-20b"], 3.0),
        ("0.7.9", ["gpt-oss-20b"], 3.0),
        ("0.7.9", ["unmeasured"], 3.0),
        ("0.8.0", ["gpt-oss-20b"], 5.5),
        ("0.8.0-rc.1", ["gpt-oss-20b"], 5.5),
        ("0.8.15", ["gpt-oss-20b"], 5.5),
        ("0.8.16", ["gpt-oss-20b"], 3.5),
        ("0.8.16-dev.3", ["gpt-oss-20b"], 3.5),
        ("v0.8.16+local", ["gpt-oss-20b"], 3.5),
        ("0.8.16", ["gpt-oss-20b", "unmeasured"], 5.5),
        ("0.8.16", [], 5.5),
        ("0.8.16", ["darkbloom-demo"], 5.5),  # not yet in that release's table
        ("0.9.0", ["gpt-oss-20b"], 3.5),
        ("0.9.0", ["darkbloom-demo"], DEMO),
        ("0.9.0", ["darkbloom-demo", "gpt-oss-20b"], 3.5),
        ("0.10.0", ["darkbloom-demo"], DEMO),
        ("1.0", ["gpt-oss-20b"], 3.5),
    ],
)
def test_a_release_holds_the_floors_of_its_time(version: str, ids: list[str], size: float) -> None:
    assert reserve_of_release(version, ids, SHIPPED_FLOORS) == int(size * GIB)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.8.16-dev.3", (0, 8, 16)),
        ("0.8.16.dev3", (0, 8, 16)),
        (" 0.8.16 ", (0, 8, 16)),
        ("0.8", (0, 8, 0)),
        ("0.10.2", (0, 10, 2)),
        ("", None),
        ("8", None),
        ("dev", None),
    ],
)
def test_a_suffix_is_no_part_of_a_release(version: str, release: tuple[int, int, int] | None) -> None:
    assert release_of(version) == release


def test_an_entry_without_a_readable_release_is_held_by_none() -> None:
    entry = {"x": Floor(GIB, "batch 8", "2026-11-29", "soon")}

    assert reserve_of_release("0.9.0", ["x"], entry) == int(5.5 * GIB)
