"""Lanes: how a step's rows are packed, and how many rows a lane has."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.exact.choice import MIX, cheapest, cost_s
from provider.exact.packing import PaddedLanes
from tests.soak import examples

ROWS = st.sampled_from([1, 2, 4, 8, 16])


@settings(max_examples=examples(20_000), deadline=None)
@given(st.data(), ROWS)
def test_every_sequence_lies_whole_in_one_lane_and_no_lane_overflows(data: st.DataObject, rows: int) -> None:
    widths = data.draw(st.lists(st.integers(1, rows), min_size=1, max_size=40))
    lanes = PaddedLanes(rows).pack(widths)
    assert sorted(number for lane in lanes for number in lane.members) == [*range(len(widths))]
    assert all(lane.rows == rows and lane.members for lane in lanes)
    assert all(sum(widths[number] for number in lane.members) <= rows for lane in lanes)


@settings(max_examples=examples(20_000), deadline=None)
@given(st.data(), ROWS)
def test_fitting_drops_drafts_only_where_that_saves_a_lane(data: st.DataObject, rows: int) -> None:
    packing = PaddedLanes(rows)
    widths = data.draw(st.lists(st.integers(1, rows), min_size=1, max_size=40))
    fitted = packing.fit(widths)
    assert all(1 <= left <= width for left, width in zip(fitted, widths, strict=True))
    assert sum(widths) - sum(fitted) <= max(0, rows // 2)
    assert len(packing.pack(fitted)) < len(packing.pack(widths)) or fitted == widths


@pytest.mark.parametrize(
    ("widths", "rows", "fitted"),
    [
        ([3, 3, 3, 3, 3, 3, 3, 3], 8, [3, 3, 3, 3, 2, 3, 3, 2]),
        ([1] * 9, 8, [1] * 9),
        ([3, 3, 3], 8, [3, 3, 2]),
        ([3, 3, 3, 3, 3], 8, [3, 3, 3, 3, 2]),
        ([4, 4], 8, [4, 4]),
        ([2], 2, [2]),
        ([], 8, []),
    ],
)
def test_worked_fits(widths: list[int], rows: int, fitted: list[int]) -> None:
    assert [*PaddedLanes(rows).fit(widths)] == fitted


def test_eight_streams_with_two_drafts_take_three_lanes_of_eight_and_not_four() -> None:
    packing = PaddedLanes(8)
    fitted = packing.fit([3] * 8)
    assert (sum(fitted), len(packing.pack([3] * 8)), len(packing.pack(fitted))) == (22, 4, 3)


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        ({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0}, 1),  # every row costs what the first does
        ({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 1.0}, 8),  # rows cost nothing: a tie
        ({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 1.2}, 8),
        ({1: 4.0, 2: 4.5, 4: 5.1, 8: 7.5, 16: 13.0}, 8),  # launches cost as much as four rows
        ({1: 4.0, 2: 6.0, 4: 10.0, 8: 20.0}, 4),
        ({4: 1.0}, 4),
    ],
)
def test_the_rows_are_those_that_make_the_mix_cheapest(seconds: dict[int, float], rows: int) -> None:
    assert cheapest(seconds) == rows


@pytest.mark.parametrize(
    ("seconds", "drafts", "rows"),
    [
        ({4: 1.0, 8: 1.0, 16: 1.05}, 0, 8),
        ({4: 1.0, 8: 1.0, 16: 1.05}, 2, 16),  # twelve positions and twenty-four in fewer launches
        ({4: 1.6, 8: 1.9, 16: 2.9}, 2, 8),
        ({4: 1.0}, 3, 4),
        ({1: 1.0}, 2, 1),  # no room for a draft
    ],
)
def test_a_model_that_drafts_counts_its_drafts_in_the_mix(seconds: dict[int, float], drafts: int, rows: int) -> None:
    assert cheapest(seconds, drafts) == rows


def test_a_draft_counts_as_the_token_that_it_may_be() -> None:
    assert cost_s({8: 1.0}, 8, 2) - cost_s({8: 1.0}, 8) == pytest.approx(1 * 1 / 3 + 4 * 2 / 3 + 8 * 3 * 8 / 22)


def test_the_cost_is_what_each_chat_of_the_mix_waits_for_its_next_token() -> None:
    assert MIX == (1, 4, 8)
    assert cost_s({4: 0.5}, 4) == pytest.approx(1 * 0.5 + 4 * 0.5 + 8 * 2 * 0.5)
