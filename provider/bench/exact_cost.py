"""From rates in exact mode and without to what exact mode costs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """`rows`: of a lane; None: exact mode off."""

    rows: int | None
    streams: int
    drafts: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One case in one round. `cpu_ms`: processor time of this process for each token."""

    round: int
    case: Case
    tokens_per_s: float
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of exact mode in lanes of `rows`, for so many streams with so many drafts each. Rates are medians over the
    rounds; `ratio` is the median of the rounds' own, exact to off: below 1 it is slower. `best_ratio` is that of the
    fastest round of each: other programs only ever slow one down; `cpu_ratio` that of the least processor time for a
    token, which they hardly change (it says nothing of a GPU). `token_ms`: from one token of a stream to its next.
    """

    rows: int
    streams: int
    drafts: int
    off_tokens_per_s: float
    on_tokens_per_s: float
    ratio: float
    ratios: tuple[float, ...]
    best_ratio: float
    cpu_ratio: float
    token_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Of the row counts that leave drafts their room (`candidates`): the one `chosen` at load, by a short measurement
    of passes, and the one that is `best` here. `mix_ms`, of each row count: the mean time between two tokens of a chat,
    over all chats that it was measured with; only those of candidates are over the same chats, with drafts among them.
    """

    candidates: tuple[int, ...]
    chosen: int
    mix_ms: dict[int, float]
    best: int


def cost_of(rows: int, streams: int, drafts: int, measured: Sequence[Measured]) -> Cost:
    """Both sides of each round are in it."""
    off, on = (_by_round(Case(side, streams, drafts), measured) for side in (None, rows))
    ratios = tuple(on[number] / off[number] for number in sorted(on))
    on_tokens_per_s = statistics.median(on.values())
    off_ms, on_ms = (
        min(one.cpu_ms for one in measured if one.case == Case(side, streams, drafts)) for side in (None, rows)
    )
    return Cost(
        rows=rows,
        streams=streams,
        drafts=drafts,
        off_tokens_per_s=statistics.median(off.values()),
        on_tokens_per_s=on_tokens_per_s,
        ratio=statistics.median(ratios),
        ratios=ratios,
        best_ratio=max(on.values()) / max(off.values()),
        cpu_ratio=off_ms / on_ms,
        token_ms=1000 * streams / on_tokens_per_s,
    )


def choice_of(candidates: Sequence[int], chosen: int, costs: Sequence[Cost]) -> Choice:
    """`costs`: of every candidate at the same numbers of streams and drafts."""
    mix_ms = {rows: _mix_ms([one for one in costs if one.rows == rows]) for rows in _rows(costs)}
    return Choice(
        candidates=tuple(candidates), chosen=chosen, mix_ms=mix_ms, best=min(candidates, key=lambda rows: mix_ms[rows])
    )


def _mix_ms(costs: Sequence[Cost]) -> float:
    return sum(one.streams * one.token_ms for one in costs) / sum(one.streams for one in costs)


def _rows(costs: Sequence[Cost]) -> list[int]:
    return sorted({one.rows for one in costs})


def _by_round(case: Case, measured: Sequence[Measured]) -> dict[int, float]:
    return {one.round: one.tokens_per_s for one in measured if one.case == case}
