"""Where models are kept warm: pure. `place` is asked again and again, and answers with what to order now.

It is slow to act and never undoes anything: a pool has to be short for a while; a provider that falls silent or dials
again is believed to hold what it held until it is lost; a load that fails, or does not last, is put off for longer each
time; and nothing is ever unloaded. So what flaps is left alone, and two desires never push each other out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from coordinator import mirror
from coordinator.attempts import Attempt, Kind, State, followed
from coordinator.config import Pace, Timings
from coordinator.fleet import Presence, ProviderView, presence
from coordinator.store.records import Desired, MemoryTables, Pool
from coordinator.suitability import Blocked, Cost, judge
from provider.protocol import DesiredModel

MINUTE_S = 60.0

Key = tuple[str, str]
"""A provider's id and a model's."""


@dataclass(frozen=True, slots=True)
class Order:
    kind: Kind
    provider_id: str
    model: DesiredModel


@dataclass(frozen=True, slots=True)
class History:
    """What has to be remembered from one asking to the next."""

    began_s: float
    seen_s: Mapping[Key, float] = field(default_factory=dict)
    """When a model was last seen warm at a provider."""
    short_since_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By model and pool."""
    attempts: Mapping[Key, Attempt] = field(default_factory=dict)
    ordered_s: tuple[float, ...] = ()
    """Within the last minute."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """How far a pool is. `blocked`: of a pool that is short, why its other providers are not asked."""

    model: str
    pool: Pool
    held: tuple[str, ...]
    coming: tuple[str, ...]
    blocked: Mapping[str, Blocked] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        return max(0, self.pool.min_warm - len(self.held) - len(self.coming))


@dataclass(frozen=True, slots=True)
class Placement:
    orders: tuple[Order, ...]
    history: History
    pools: tuple[PoolState, ...]


def place(
    desired: Sequence[Desired],
    views: Mapping[str, ProviderView],
    now_s: float,
    history: History,
    timings: Timings,
    tables: MemoryTables,
    pace: Pace,
    may_order: bool = True,
) -> Placement:
    """What to order now, and what to remember of it. The earlier a model is listed, the earlier it is served."""
    learned = _learned(history, views, now_s, timings, pace)
    if not any(pool.min_warm for one in desired for pool in one.pools):
        return Placement((), replace(learned, short_since_s={}), ())
    return _Round(desired, views, now_s, learned, timings, tables, pace).placed(may_order)


def _learned(
    history: History, views: Mapping[str, ProviderView], now_s: float, timings: Timings, pace: Pace
) -> History:
    attempts = {
        key: now
        for key, attempt in history.attempts.items()
        if (view := views.get(key[0])) is not None
        and (now := followed(attempt, key[1], view, now_s, timings, pace)) is not None
    }
    recent = tuple(at_s for at_s in history.ordered_s if now_s - at_s < MINUTE_S)
    return replace(history, attempts=attempts, ordered_s=recent)


class _Round:
    """One asking: the orders that it makes count for those it makes after them."""

    def __init__(
        self,
        desired: Sequence[Desired],
        views: Mapping[str, ProviderView],
        now_s: float,
        history: History,
        timings: Timings,
        tables: MemoryTables,
        pace: Pace,
    ) -> None:
        self._desired = [one for one in desired if any(pool.min_warm for pool in one.pools)]
        self._views = views
        self._now_s = now_s
        self._history = history
        self._timings = timings
        self._tables = tables
        self._pace = pace
        self._attempts = dict(history.attempts)
        self._ordered_s = list(history.ordered_s)
        self._orders: list[Order] = []
        self._wanted = {one.model.id for one in self._desired}
        self._held: dict[str, list[str]] = {model: [] for model in self._wanted}
        self._seen_s = dict(self._see())
        self._loading = {id: one.evicts for (id, _), one in self._attempts.items() if one.loading}
        """Providers that are loading by order, and whether in the place of others."""
        self._coming = {model: self._under_way(model) for model in self._wanted}

    def placed(self, may_order: bool) -> Placement:
        short = dict(self._short())
        due = may_order and self._now_s - self._history.began_s >= self._pace.start_s
        pools = [
            self._served(one, pool, short.get((one.model.id, pool.providers)) if due else None)
            for one in self._desired
            for pool in one.pools
        ]
        history = History(self._history.began_s, self._seen_s, short, self._attempts, tuple(self._ordered_s))
        return Placement(tuple(self._orders), history, tuple(pools))

    def _see(self) -> Iterator[tuple[Key, float]]:
        """Who holds what, and when that was last seen."""
        for id, view in self._views.items():
            away = view.draining or presence(view, self._now_s, self._timings) is Presence.LOST
            for model, slot in view.slots.items():
                if model in self._wanted and (mirror.loaded(slot) or slot.state == "loading"):
                    yield (id, model), self._now_s
                    if not away:
                        self._held[model].append(id)
        for (id, model), seen_s in self._history.seen_s.items():
            silent = self._views.get(id)
            if silent is None or silent.slots or self._now_s - seen_s >= self._pace.believed_s:
                continue
            if model in self._wanted and silent.capacity_seq is None and not silent.draining:
                yield (id, model), seen_s
                self._held[model].append(id)

    def _under_way(self, model: str) -> list[str]:
        loads = (key for key, one in self._attempts.items() if one.loading)
        return [id for id, of in loads if of == model and id not in self._held[model]]

    def _short(self) -> Iterator[tuple[tuple[str, str], float]]:
        for one in self._desired:
            for pool in one.pools:
                key = (one.model.id, pool.providers)
                if self._state(one.model.id, pool).missing:
                    yield key, self._history.short_since_s.get(key, self._now_s)

    def _state(self, model: str, pool: Pool) -> PoolState:
        return PoolState(model, pool, self._of(pool, self._held[model]), self._of(pool, self._coming[model]))

    def _of(self, pool: Pool, ids: Sequence[str]) -> tuple[str, ...]:
        return tuple(id for id in ids if matches(pool, self._views[id]))

    def _served(self, desired: Desired, pool: Pool, short_since_s: float | None) -> PoolState:
        """With orders, where it has been short for long enough."""
        state = self._state(desired.model.id, pool)
        if not state.missing:
            return state
        candidates, blocked = self._judged(desired.model.id, pool)
        if short_since_s is not None and self._now_s - short_since_s >= self._pace.settle_s:
            for one in candidates[: state.missing]:
                # Judged again: an order before it may have made what it holds needed.
                if isinstance(self._judge(self._views[one.provider_id], desired.model.id), Cost):
                    self._order(Kind.LOAD, one.provider_id, desired, one.evicts)
            self._fetch_again(desired, blocked, state.missing - len(candidates))
            state = self._state(desired.model.id, pool)
        return replace(state, blocked=blocked)

    def _judged(self, model: str, pool: Pool) -> tuple[list[Cost], dict[str, Blocked]]:
        candidates: list[Cost] = []
        blocked: dict[str, Blocked] = {}
        for id, view in self._views.items():
            if matches(pool, view):
                match self._judge(view, model):
                    case Cost() as cost:
                        candidates.append(cost)
                    case Blocked() as reason:
                        blocked[id] = reason
        return sorted(candidates), blocked

    def _judge(self, view: ProviderView, model: str) -> Cost | Blocked:
        attempt = self._attempts.get((view.provider_id, model))
        if attempt is not None and attempt.state is State.UNDER_WAY:
            return Blocked.ORDERED
        if view.provider_id in self._loading:
            return Blocked.BUSY_LOADING
        verdict = judge(view, model, self._kept(view), self._now_s, self._timings, self._tables)
        backing_off = attempt is not None and self._now_s < attempt.retry_s(self._pace)
        return Blocked.BACKING_OFF if isinstance(verdict, Cost) and backing_off else verdict

    def _kept(self, view: ProviderView) -> set[str]:
        """Whose pool would be short without it."""
        return {
            one.model.id
            for one in self._desired
            if one.model.id in view.slots and any(self._needs(one.model.id, pool, view) for pool in one.pools)
        }

    def _needs(self, model: str, pool: Pool, view: ProviderView) -> bool:
        """Who is loading it does not hold it yet; who loads something in the place of others may soon not any more."""
        held = self._of(pool, self._held[model])
        sure = [id for id in held if mirror.loaded(self._views[id].slots.get(model)) and not self._loading.get(id)]
        return matches(pool, view) and len(sure) <= pool.min_warm

    def _fetch_again(self, desired: Desired, blocked: Mapping[str, Blocked], most: int) -> None:
        """A provider fetches what is desired by itself, once."""
        lacking = [id for id, reason in blocked.items() if reason is Blocked.NOT_ADVERTISED]
        for id in [id for id in lacking if self._may_fetch_again(id, desired.model.id)][: max(0, most)]:
            self._order(Kind.PREFETCH, id, desired)

    def _may_fetch_again(self, provider_id: str, model: str) -> bool:
        attempt = self._attempts.get((provider_id, model))
        waits = attempt is not None and self._now_s < attempt.retry_s(self._pace)
        note = self._views[provider_id].prefetches.get(model)
        return note is not None and note.message.status == "failed" and not waits

    def _order(self, kind: Kind, provider_id: str, desired: Desired, evicts: bool = False) -> bool:
        """False when there have been too many of late."""
        if len(self._ordered_s) >= self._pace.per_minute:
            return False
        model = desired.model
        former = self._attempts.get((provider_id, model.id))
        failures = 0 if former is None else former.failures
        self._attempts[provider_id, model.id] = Attempt(kind, self._now_s, failures=failures, evicts=evicts)
        self._ordered_s.append(self._now_s)
        self._orders.append(Order(kind, provider_id, model))
        if kind is Kind.LOAD:
            self._coming[model.id].append(provider_id)
            self._loading[provider_id] = evicts
        return True


def matches(pool: Pool, view: ProviderView) -> bool:
    """By its name, of which there may be several, or by its id."""
    return pool.providers in ("*", view.provider_id) or fnmatchcase(view.name, pool.providers)
