"""A provider at which a model's requests keep failing gets none for a while, and then one at a time until one succeeds:
pure.

Failures are of any kind that another provider might not have: a worker that dies, a connection that is lost, a request
that is never accepted, a stream with a hole. Want of capacity is told apart (cooldown.py). Witnesses are counted, and
not failures, for a request that breaks whatever it meets says nothing of the provider however often it is sent. Closed,
open and half open are a circuit breaker's states (Nygard, Release It!, 2007).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

FAILURES = 5
"""Witnesses in a row, before the first opening."""
FIRST_S = 10.0
LONGEST_S = 300.0
FORGOTTEN_AFTER_S = 600.0
"""Failures that far apart are not one story."""
LATELY_S = 60.0
"""A provider that has served somebody within so long is not broken by the word of one other key alone."""
TOGETHER_S = 0.1
"""What ends within so long for one and the same reason, the end of a worker or a step that failed, is one failure."""
KEPT = 16
"""The last witnesses, by which one that comes again is known."""
PAIRS = 50_000
"""Of a provider and a model, whose last successes are remembered."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What a failure was part of, and what counts once: a key's request, however often it is sent; or the loss of a
    connection, however many requests it carried, and whoever's (`key` None). `shared`: of a kind that ends all that
    run together."""

    key: int | None
    what: bytes
    shared: bool = field(default=False, compare=False)


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One request is let through, to see."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Failures of one model at one provider since it last succeeded there, each of another witness. A success ends
    it."""

    failures: int
    failed_s: float
    until_s: float
    witnesses: tuple[Witness, ...] = ()

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


def failed(known: Breaker | None, now_s: float, witness: Witness, others_served: bool = False) -> Breaker:
    """One more failure. `known` where it says nothing new: its witness has been heard; or it ended together with
    others; or the breaker is open, and it was under way then; or it would be opened by a single key, and others have
    been served there of late. A trial that fails shuts it again whoever's it was, but only a new witness for longer."""
    if known is None:
        return Breaker(1, now_s, now_s, (witness,))
    if known.state(now_s) is BreakerState.OPEN:
        return known
    if now_s - known.failed_s >= FORGOTTEN_AFTER_S:
        return Breaker(1, now_s, now_s, (witness,))
    if witness in known.witnesses and known.state(now_s) is BreakerState.HALF_OPEN:
        return replace(known, failed_s=now_s, until_s=now_s + _length_s(known.failures))
    if witness in known.witnesses or (witness.shared and now_s - known.failed_s < TOGETHER_S):
        return known
    failures = known.failures + 1
    alone = witness.key is not None and all(one.key == witness.key for one in known.witnesses)
    if failures == FAILURES and alone and others_served:
        return known
    return Breaker(failures, now_s, now_s + _length_s(failures), (*known.witnesses, witness)[-KEPT:])


class Served:
    """Who was served last, and by whom: of each pair of a provider and a model the last two keys. Owned by the event
    loop."""

    def __init__(self, pairs: int = PAIRS) -> None:
        self._pairs = pairs
        self._last: OrderedDict[tuple[str, str], tuple[_Success, _Success | None]] = OrderedDict()

    def note(self, provider_id: str, model: str, key: int, now_s: float) -> None:
        pair = (provider_id, model)
        last, before = self._last.get(pair, (None, None))
        other = last if last is not None and last.key != key else before
        self._last[pair] = (_Success(key, now_s), other)
        self._last.move_to_end(pair)
        if len(self._last) > self._pairs:
            self._last.popitem(last=False)

    def others(self, provider_id: str, model: str, key: int | None, now_s: float) -> bool:
        """Whether another key has been served there of late."""
        last = self._last.get((provider_id, model), ())
        return any(one is not None and one.key != key and now_s - one.at_s < LATELY_S for one in last)


@dataclass(frozen=True, slots=True)
class _Success:
    key: int
    at_s: float


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
