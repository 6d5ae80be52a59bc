"""Routing decisions on record: all are counted; of many, a sample is kept with its terms and logged."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator import log
from coordinator.reasons import Reason
from coordinator.routing import Chosen, Refused, Request

KEPT = 256
SAMPLED_PER_S = 10
REFUSALS_PER_S = 2
"""A request that waits is decided on again and again."""
MILLISECONDS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
SECONDS = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 20e-3, 100e-3)

Gated = Callable[[], Mapping[tuple[str, Reason], int]]
Listed = Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Decision:
    """`at_s`: monotonic seconds."""

    at_s: float
    request: Request
    outcome: Chosen | Refused

    def shown(self, now_s: float) -> dict[str, Any]:
        asked = {"model": self.request.model, "prompt_tokens": self.request.prompt_tokens, "request": self.request.name}
        return {"age_s": round(now_s - self.at_s, 3), **asked, **_told(self.outcome)}


class Decisions:
    """Owned by the event loop. `gated` and `listed` are asked at each scrape: how many providers each gate keeps from
    each model, and who is known."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float], gated: Gated, listed: Listed) -> None:
        self._clock = clock
        self._kept: deque[Decision] = deque(maxlen=KEPT)
        self._chosen: dict[str, int] = {}
        self._samples, self._refusals = Sampling(SAMPLED_PER_S), Sampling(REFUSALS_PER_S)
        self._outcomes = Counter("darkbloom_route_decisions", "Routing decisions.", ["outcome"], registry=registry)
        self._seconds = Histogram(
            "darkbloom_route_seconds", "What a routing decision took.", buckets=SECONDS, registry=registry
        )
        self._terms = Histogram(
            "darkbloom_route_term_milliseconds",
            "Predicted cost of the chosen by term, of the decisions that were sampled.",
            ["term"],
            buckets=MILLISECONDS,
            registry=registry,
        )
        registry.register(_Scraped(gated, lambda: self._listed(listed())))

    def note(self, request: Request, outcome: Chosen | Refused, took_s: float) -> None:
        now_s = self._clock()
        self._seconds.observe(took_s)
        match outcome:
            case Chosen(provider_id):
                self._outcomes.labels("chosen").inc()
                self._chosen[provider_id] = self._chosen.get(provider_id, 0) + 1
                if self._samples.takes(now_s):
                    self._keep(Decision(now_s, request, outcome))
                    for term, cost_ms in outcome.terms._asdict().items():
                        self._terms.labels(term).observe(cost_ms)
            case Refused():
                self._outcomes.labels("refused").inc()
                if self._refusals.takes(now_s):
                    self._keep(Decision(now_s, request, outcome))

    def of(self, provider_id: str) -> list[Decision]:
        """Those kept that chose it, the last first."""
        return [one for one in reversed(self._kept) if _chose(one.outcome, provider_id)]

    def _keep(self, decision: Decision) -> None:
        self._kept.append(decision)
        request = decision.request
        fields = {"request_id": request.name or None, "model": request.model, "prompt_tokens": request.prompt_tokens}
        log.event("route", **fields, answer_tokens=request.answer_tokens, **_logged(decision.outcome))

    def _listed(self, listed: Iterable[str]) -> Mapping[str, int]:
        """Whoever is forgotten is not counted any more."""
        known = set(listed)
        for provider_id in [one for one in self._chosen if one not in known]:
            del self._chosen[provider_id]
        return self._chosen


class Sampling:
    """So many in each second."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = -1
        self._taken = 0

    def takes(self, now_s: float) -> bool:
        if int(now_s) != self._second:
            self._second, self._taken = int(now_s), 0
        self._taken += 1
        return self._taken <= self._per_s


class _Scraped(Collector):
    def __init__(self, gated: Gated, chosen: Callable[[], Mapping[str, int]]) -> None:
        self._gated = gated
        self._chosen = chosen

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked when this is registered."""
        return []

    def collect(self) -> Iterable[Metric]:
        gated = GaugeMetricFamily(
            "darkbloom_route_gated",
            "Providers that cannot take an ordinary request for a model now, by the gate that keeps them.",
            labels=["model", "reason"],
        )
        for (model, reason), count in self._gated().items():
            gated.add_metric([model, reason.value], count)
        yield gated
        chosen = CounterMetricFamily("darkbloom_route_chosen", "Decisions for a provider.", labels=["provider"])
        for provider_id, times in self._chosen().items():
            chosen.add_metric([provider_id], times)
        yield chosen


def _chose(outcome: Chosen | Refused, provider_id: str) -> bool:
    return isinstance(outcome, Chosen) and outcome.provider_id == provider_id


def _told(outcome: Chosen | Refused) -> dict[str, Any]:
    match outcome:
        case Chosen(provider_id, cost_ms, terms, candidates):
            shown = {term: round(value, 3) for term, value in terms._asdict().items()}
            return {"provider": provider_id, "cost_ms": round(cost_ms, 3), "candidates": candidates, "terms": shown}
        case Refused(counts):
            return {"refused": {reason.value: count for reason, count in counts.items()}}


def _logged(outcome: Chosen | Refused) -> dict[str, Any]:
    """Flat, and of the terms only those that say something."""
    told = _told(outcome)
    terms = {f"{term}_ms": value for term, value in told.pop("terms", {}).items() if value}
    return {**told.pop("refused", {}), **told, **terms}
