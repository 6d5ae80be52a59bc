"""From rates to what exact concurrency costs."""

import pytest

from provider.bench.exact import cases_of
from provider.bench.exact_cost import Case, Cost, Measured, choice_of, cost_of


def rates(case: Case, *tokens_per_s: float) -> list[Measured]:
    return [Measured(number, case, one, cpu_ms=1000 / one) for number, one in enumerate(tokens_per_s)]


def test_a_ratio_is_of_one_round_and_the_median_of_the_rounds_counts() -> None:
    measured = rates(Case(None, 8, 0), 100, 50, 200) + rates(Case(4, 8, 0), 90, 50, 100) + rates(Case(4, 1, 0), 1, 1, 1)
    cost = cost_of(4, 8, 0, measured)
    assert cost.ratios == (0.9, 1.0, 0.5)
    assert (cost.ratio, cost.off_tokens_per_s, cost.on_tokens_per_s) == (0.9, 100, 90)
    assert cost.best_ratio == 100 / 200
    assert cost.cpu_ratio == pytest.approx((1000 / 200) / (1000 / 100)), "of the least of each"
    assert cost.token_ms == pytest.approx(1000 * 8 / 90)


def test_rows_are_compared_over_all_chats_those_with_drafts_among_them() -> None:
    costs = [
        _cost(1, 1, 0, token_ms=5), _cost(1, 8, 0, token_ms=40), _cost(8, 1, 0, token_ms=10),
        _cost(8, 8, 0, token_ms=12), _cost(8, 8, 2, token_ms=20), _cost(16, 1, 0, token_ms=14),
        _cost(16, 8, 0, token_ms=15), _cost(16, 8, 2, token_ms=16),
    ]  # fmt: skip
    choice = choice_of([8, 16], 8, costs)
    assert choice.mix_ms == {
        1: (5 + 8 * 40) / 9,
        8: (10 + 8 * 12 + 8 * 20) / 17,
        16: (14 + 8 * 15 + 8 * 16) / 17,
    }
    assert (choice.chosen, choice.best) == (8, 16)
    assert choice_of([8], 8, costs).best == 8, "of those that can be exact"


def test_every_row_count_is_measured_beside_the_mode_off_and_drafts_where_they_have_room() -> None:
    cases = cases_of([2, 4, 8], [4, 8], 8, 2)
    assert {(one.rows, one.streams) for one in cases if not one.drafts} == {
        (rows, streams) for rows in (None, 2, 4, 8) for streams in (1, 4, 8)
    }
    assert cases[:2] == [Case(None, 1, 0), Case(8, 1, 0)], "disturbed alike"
    assert [one for one in cases if one.drafts] == [Case(None, 8, 2), Case(8, 8, 2), Case(4, 8, 2)]
    assert not any(one.drafts for one in cases_of([4], [4], 4, 0))


def _cost(rows: int, streams: int, drafts: int, token_ms: float) -> Cost:
    return Cost(
        rows=rows, streams=streams, drafts=drafts, off_tokens_per_s=1, on_tokens_per_s=1, ratio=1, ratios=(1,),
        best_ratio=1, cpu_ratio=1, token_ms=token_ms,
    )  # fmt: skip
