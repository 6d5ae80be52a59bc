"""Which provider takes a request: pure, and with one closed reason for each that cannot."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from coordinator import costs, gates
from coordinator.columns import Floats, Place
from coordinator.config import Timings
from coordinator.costs import Rates, Terms
from coordinator.gates import Codes, Request
from coordinator.mirror import TooLong
from coordinator.reasons import BUSY, CODES, REASONS, Reason
from coordinator.store.records import MemoryTables
from coordinator.views import Seen, Views

__all__ = [
    "BUSY",
    "Beyond",
    "Candidate",
    "Chosen",
    "Explanation",
    "Reason",
    "Refused",
    "Request",
    "explain",
    "route",
]

TIE_SHARE = 0.1
"""Costs as near as this to the least are the same: no prediction is better."""
TIE_MS = 1.0
MOST_GATED = 128
"""Models that are told of at each scrape."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Nobody in the fleet can ever serve so long a prompt; `longest_tokens` is what the best of them could."""

    reason: TooLong
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class Chosen:
    provider_id: str
    cost_ms: float
    terms: Terms[float]
    candidates: int
    """How many could have taken it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """`counts`: providers by reason; `reason` is the one nearest to a yes, None when the fleet is empty. `beyond`: no
    waiting would help."""

    counts: Mapping[Reason, int]
    beyond: Beyond | None = None

    @property
    def reason(self) -> Reason | None:
        return max(self.counts, key=lambda reason: reason.nearness, default=None)

    @property
    def listed(self) -> bool:
        """Whether anyone at all serves the model."""
        return any(reason is not Reason.MODEL_NOT_SERVED for reason in self.counts)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One provider's verdict: a reason, or what it would cost."""

    provider_id: str
    reason: Reason | None
    terms: Terms[float] | None

    @property
    def cost_ms(self) -> float | None:
        return None if self.terms is None else sum(self.terms)


def route(
    request: Request,
    views: Views,
    now_s: float,
    rng: random.Random,
    timings: Timings,
    tables: MemoryTables,
) -> Chosen | Refused:
    """The provider of least cost. Of those that are as good it is one that has the model loaded, if any has, and the
    one that served the conversation last, else any. Every other provider has a cost or a reason."""
    seen = views.seen(request.model, tables)
    if seen is None:
        return Refused(_counts(np.zeros(0, np.uint8), len(views)))
    able = gates.able(request, seen.own, seen.machine, _tried(request, seen), now_s, timings)
    candidates = int(np.count_nonzero(able))
    if not candidates:
        return Refused(_counts(_codes(request, seen, now_s, timings), len(views)), _beyond(request, seen))
    rates, last = costs.rates(seen.own), _served_last(request, seen)
    cost = costs.cost(request, seen.own, rates, seen.machine.slowdown, last, now_s)
    cost[~able] = np.inf
    least = float(cost.min())
    ties = np.flatnonzero(cost <= least + max(TIE_MS, TIE_SHARE * least))
    warm = ties[seen.own.residency_ms[ties] == 0]
    best = warm if len(warm) else ties
    row = last if last is not None and last in best else int(best[rng.randrange(len(best))])
    return Chosen(seen.ids[row], float(cost[row]), _terms(request, seen, rates, now_s, row), candidates)


class Explanation:
    """Every provider as `route` sees it at one moment. It is of copies: what changes afterwards is not seen, so that
    it may be read bit by bit."""

    def __init__(self, request: Request, views: Views, now_s: float, timings: Timings, tables: MemoryTables) -> None:
        self.views = views.copied()
        self._request = request
        self._now_s = now_s
        seen = views.seen(request.model, tables)
        self._rows = {} if seen is None else dict(seen.rows)
        if seen is None:
            self._codes = np.zeros(0, np.uint8)
            return
        self._codes = _codes(request, seen, now_s, timings)
        self._own = np.array(seen.own)
        self._rates, self._last = costs.rates(seen.own), _served_last(request, seen)
        self._slowdown = seen.machine.slowdown

    @property
    def counts(self) -> dict[Reason, int]:
        """How many have which reason; all others could take it."""
        return _counts(self._codes, len(self.views))

    def nearest(self, most: int) -> list[str]:
        """So many ids: in the order of `views` where that is all of them, else the cheapest first, and then those that
        are nearest to a yes."""
        if most >= len(self.views) or not self._rows:
            return list(self.views)[:most]
        place = Place(*self._own)
        cost = costs.cost(self._request, place, self._rates, self._slowdown, self._last, self._now_s)
        nearness = np.where(self._codes == 0, np.inf, self._codes)
        ids = {row: one for one, row in self._rows.items()}
        serving = [ids[row] for row in np.lexsort((cost, -nearness))[:most].tolist()]
        others = (one for one in self.views if one not in self._rows)
        return [*serving, *islice(others, most - len(serving))]

    def candidates(self, ids: Iterable[str]) -> list[Candidate]:
        return [self._candidate(one) for one in ids]

    def _candidate(self, provider_id: str) -> Candidate:
        row = self._rows.get(provider_id)
        if row is None:
            return Candidate(provider_id, Reason.MODEL_NOT_SERVED, None)
        code = int(self._codes[row])
        if code:
            return Candidate(provider_id, REASONS[code - 1], None)
        own, mine = Place(*self._own[:, row].tolist()), Rates(*(column.item(row) for column in self._rates))
        slowdown = self._slowdown.item(row)
        terms = costs.terms(self._request, own, mine, slowdown, row == self._last, self._now_s)
        return Candidate(provider_id, None, terms)


def explain(
    request: Request, views: Views, now_s: float, timings: Timings, tables: MemoryTables
) -> dict[str, Candidate]:
    """Every provider, in the order of `views`, as `route` sees it."""
    explanation = Explanation(request, views, now_s, timings, tables)
    return {one.provider_id: one for one in explanation.candidates(explanation.views)}


def reasons(
    request: Request, views: Views, now_s: float, timings: Timings, tables: MemoryTables
) -> tuple[list[str], Codes]:
    """Of those who serve the model: their ids, and for each the code of its reason, 0 where it can take the request."""
    seen = views.seen(request.model, tables)
    return ([], np.zeros(0, np.uint8)) if seen is None else (seen.ids, _codes(request, seen, now_s, timings))


def gated(views: Views, now_s: float, timings: Timings, tables: MemoryTables) -> dict[tuple[str, Reason], int]:
    """By model and reason, how many of those who serve it could not take an ordinary request: of the models that the
    most providers serve, for every one takes its time."""
    counts: dict[tuple[str, Reason], int] = {}
    for model in views.most_served(MOST_GATED):
        _, codes = reasons(Request(model, prompt_tokens=0), views, now_s, timings, tables)
        counts |= {(model, reason): count for reason, count in _counts(codes, len(codes)).items()}
    return counts


def _codes(request: Request, seen: Seen, now_s: float, timings: Timings) -> Codes:
    return gates.codes(request, seen.own, seen.machine, _tried(request, seen), now_s, timings)


def _tried(request: Request, seen: Seen) -> list[int]:
    return [seen.rows[one] for one in request.tried if one in seen.rows]


def _served_last(request: Request, seen: Seen) -> int | None:
    return None if request.served_last is None else seen.rows.get(request.served_last)


def _terms(request: Request, seen: Seen, rates: Rates[Floats], now_s: float, row: int) -> Terms[float]:
    own = Place(*(column.item(row) for column in seen.own))
    mine = Rates(rates.prefill.item(row), rates.decode.item(row))
    slowdown = seen.machine.slowdown_of(row)
    return costs.terms(request, own, mine, slowdown, _served_last(request, seen) == row, now_s)


def _counts(codes: Codes, listed: int) -> dict[Reason, int]:
    """Of a fleet of `listed`, where nobody can: those without a code do not serve the model."""
    by_code = np.bincount(codes, minlength=len(REASONS) + 1).tolist()
    by_code[CODES[Reason.MODEL_NOT_SERVED]] = listed - len(codes)
    return {reason: by_code[code] for reason, code in CODES.items() if by_code[code]}


def _beyond(request: Request, seen: Seen) -> Beyond | None:
    """Only when everyone who serves the model is known to be too small, whoever is here or away now."""
    found = np.zeros(len(seen.ids), np.uint8)
    gates.put_too_long(found, request.least_tokens, seen.own, seen.machine)
    if not found.all():
        return None
    cramped = bool((found == CODES[Reason.PROMPT_TOO_LONG]).any())
    reason = TooLong.PROMPT_TOO_LONG if cramped else TooLong.CONTEXT_EXCEEDED
    return Beyond(reason, int(gates.longest_prompts(seen.own, seen.machine).max()))
