"""Whose activation floor is charged, and what may raise it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.memory.caps import GIB, gib_to_bytes
from provider.memory.floors import (
    DEFAULT_FLOOR_BYTES,
    MIB,
    SHIPPED_FLOORS,
    activation_reserve,
    floor,
    floor_table,
    serving_set,
    shipped_table,
)
from tests.fixtures.worked_tiers import DOCUMENT

TABLE = {"gpt-oss-20b": 7 * GIB // 2, "small": GIB // 4}
IDS = ["gpt-oss-20b", "small", "unmeasured", "another"]
some_ids = st.sets(st.sampled_from(IDS))


def reserve(advertised: list[str] | None, resident: list[str], loading: list[str], asked: list[str]) -> int:
    return activation_reserve(serving_set(advertised, resident, loading, asked), TABLE)


@pytest.mark.parametrize(
    ("ids", "size"),
    [
        ([], 5.5),
        (["unmeasured"], 5.5),
        (["gpt-oss-20b"], 3.5),
        (["small"], 0.25),
        (["small", "gpt-oss-20b"], 3.5),
        (["small", "gpt-oss-20b", "unmeasured"], 5.5),
        (["GPT-OSS-20B"], 5.5),  # ids are exact
        (["openai/gpt-oss-20b"], 5.5),
    ],
)
def test_the_largest_floor_of_a_set_is_charged(ids: list[str], size: float) -> None:
    assert floor(ids, TABLE) == int(size * GIB)


@pytest.mark.parametrize(
    ("advertised", "resident", "loading", "asked", "size"),
    [
        # Declared: what is advertised, resident, loading and asked for, all together.
        (["gpt-oss-20b"], [], [], ["gpt-oss-20b"], 3.5),
        (["gpt-oss-20b", "unmeasured"], [], [], ["gpt-oss-20b"], 5.5),
        (["gpt-oss-20b"], ["unmeasured"], [], ["gpt-oss-20b"], 5.5),
        (["small"], [], ["gpt-oss-20b"], [], 3.5),
        (["small"], [], [], ["unmeasured"], 5.5),
        # Declared and empty: anything may come.
        ([], [], [], ["gpt-oss-20b"], 5.5),
        ([], ["small"], ["gpt-oss-20b"], ["small"], 5.5),
        ([], [], [], [], 5.5),
        # Not declared: the model asked for, beside what is there.
        (None, [], [], ["gpt-oss-20b"], 3.5),
        (None, ["small"], [], ["gpt-oss-20b"], 3.5),
        (None, ["unmeasured"], [], ["gpt-oss-20b"], 5.5),
        (None, [], [], ["small"], 0.25),
        (None, [], [], [], 5.5),
    ],
)
def test_declared_nothing_and_unknown_are_three_things(
    advertised: list[str] | None, resident: list[str], loading: list[str], asked: list[str], size: float
) -> None:
    assert reserve(advertised, resident, loading, asked) == int(size * GIB)


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ("8", 8),
        ("3.6", 3.6),
        ("3", 3.5),  # left over from an older default: it would bring the old failure back
        ("0", 3.5),
        ("-9", 3.5),
        ("nan", 3.5),
        ("inf", 3.5),
        ("plenty", 3.5),
        ("", 3.5),
        (None, 3.5),
    ],
)
def test_the_environment_only_raises_the_reserve(told: str | None, size: float) -> None:
    assert activation_reserve(["gpt-oss-20b"], TABLE, gib_to_bytes(told)) == int(size * GIB)


def test_a_shipped_floor_says_what_it_rests_on() -> None:
    assert shipped_table()["gpt-oss-20b"] == 7 * GIB // 2
    assert SHIPPED_FLOORS.keys() == {"gpt-oss-20b", "darkbloom-demo"}
    for entry in SHIPPED_FLOORS.values():
        assert 0 < entry.floor_bytes < DEFAULT_FLOOR_BYTES
        assert "batch 8" in entry.basis
        assert entry.measured_on >= "2026"


def test_the_document_gives_every_shipped_floor_with_its_basis_and_date() -> None:
    section = DOCUMENT.read_text().partition("## Floors")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "iB |" in line]
    units = {"GiB": GIB, "MiB": MIB}
    told = {
        id.strip("`"): (float(size.split()[0]) * units[size.split()[1]], basis, date) for id, size, basis, date in rows
    }

    assert told.pop("any other")[0] == DEFAULT_FLOOR_BYTES
    assert told == {id: (one.floor_bytes, one.basis, one.measured_on) for id, one in SHIPPED_FLOORS.items()}


def test_what_is_measured_here_never_goes_before_what_is_shipped_nor_holds_for_what_sees() -> None:
    table = floor_table({"gpt-oss-20b": 1, "mine": 2, "seeing": 3}, seeing=["seeing", "darkbloom-demo"])

    assert table == {"gpt-oss-20b": 7 * GIB // 2, "mine": 2}


def test_no_model_that_sees_images_has_a_shipped_floor() -> None:
    """The tower's transient rides the reserve, and no measurement here includes one."""
    assert not any("qwen3.5" in id or "qwen3.6" in id or "vl" in id for id in SHIPPED_FLOORS)


@given(advertised=some_ids, resident=some_ids, loading=some_ids, asked=some_ids, more=st.sampled_from(IDS))
def test_another_member_never_lowers_the_reserve(
    advertised: set[str], resident: set[str], loading: set[str], asked: set[str], more: str
) -> None:
    declared = advertised | {"small"}
    before = activation_reserve(serving_set(declared, resident, loading, asked), TABLE)

    for wider in (
        serving_set(declared | {more}, resident, loading, asked),
        serving_set(declared, resident | {more}, loading, asked),
        serving_set(declared, resident, loading | {more}, asked),
        serving_set(declared, resident, loading, asked | {more}),
    ):
        assert activation_reserve(wider, TABLE) >= before


@given(ids=some_ids, told=st.none() | st.integers(0, 2**40))
def test_a_reserve_is_no_less_than_the_floor_or_the_told_number(ids: set[str], told: int | None) -> None:
    found = activation_reserve(ids, TABLE, told)

    assert found in (floor(ids, TABLE), told)
    assert found >= max(floor(ids, TABLE), told or 0)
