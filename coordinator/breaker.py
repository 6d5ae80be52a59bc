"""A provider at which a model's requests keep failing gets none for a while, and then one at a time until one succeeds:
pure.

Failures are of any kind that another provider might not have: a worker that dies, a connection that is lost, a request
that is never accepted, a stream with a hole. Want of capacity is told apart (cooldown.py). Closed, open and half open
are a circuit breaker's states (Nygard, Release It!, 2007).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

FAILURES = 5
"""In a row, before the first opening: a request that breaks whatever it meets is tried three times, and must not take
a fleet with it."""
FIRST_S = 10.0
LONGEST_S = 300.0
FORGOTTEN_AFTER_S = 600.0
"""Failures that far apart are not one story."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One request is let through, to see."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Failures of one model at one provider since it last succeeded there. A success ends it."""

    failures: int
    failed_s: float
    until_s: float
    incident: int | None = None
    """What the last failure was part of, if it was more than one request's."""

    def state(self, now_s: float) -> BreakerState:
        if self.failures < FAILURES:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self.until_s else BreakerState.HALF_OPEN

    def forbids(self, now_s: float, trying: bool) -> bool:
        """`trying`: a request of the model is with the provider already, and has not ended."""
        match self.state(now_s):
            case BreakerState.CLOSED:
                return False
            case BreakerState.OPEN:
                return True
            case BreakerState.HALF_OPEN:
                return trying


def failed(known: Breaker | None, now_s: float, incident: int | None = None) -> Breaker:
    """One more failure. Those of one incident, such as the loss of a connection that carried many requests, are one;
    those that were under way when it opened do not keep it open for longer."""
    if known is not None and (known.state(now_s) is BreakerState.OPEN or known.incident == incident is not None):
        return known
    forgotten = known is None or now_s - known.failed_s >= FORGOTTEN_AFTER_S
    failures = 1 if known is None or forgotten else known.failures + 1
    return Breaker(failures, now_s, now_s + _length_s(failures), incident)


def _length_s(failures: int) -> float:
    beyond = failures - FAILURES
    return 0.0 if beyond < 0 else min(LONGEST_S, FIRST_S * 2.0 ** min(beyond, 16))


class BreakerStates(Collector):
    """darkbloom_breakers, at each scrape: how many pairs of a provider and a model are open, and how many are tried."""

    def __init__(self, breakers: Callable[[], Iterable[Breaker]], clock: Callable[[], float]) -> None:
        self._breakers = breakers
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        now_s = self._clock()
        states = [breaker.state(now_s) for breaker in self._breakers()]
        family = GaugeMetricFamily("darkbloom_breakers", "Models left alone at a provider.", labels=["state"])
        for state in (BreakerState.OPEN, BreakerState.HALF_OPEN):
            family.add_metric([state.value], states.count(state))
        yield family
