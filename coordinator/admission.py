"""Who gets a place at a provider, and when: at once where there is one and nobody waits, else in turn as places come
free.

Whatever changes the view of a provider may have made a place: the waiting requests for its models are then decided on,
one after the other, and each that can be sent holds its place before the next is looked at. What changes with time
alone (the end of a cooldown, a provider given up as lost) is looked for a few times a second while anyone waits.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coordinator import log, prospects, refusals
from coordinator.config import Timings
from coordinator.lease import Ask, Lease
from coordinator.metrics import Metrics
from coordinator.reasons import Reason
from coordinator.routing import Chosen, Refused, Request
from coordinator.store.records import MemoryTables
from coordinator.views import Views
from coordinator.waiting import Full, Joined, Waiter, WaitingRoom
from provider.api.wire import Failure, internal_error

RECHECK_S = 0.25
LOOKED_AT = 16
"""Of those for a model that cannot be sent now, at most so many in one go: what keeps one may not keep the next."""
SIZE = frozenset({Reason.NO_KV_ROOM, Reason.CONTEXT_EXCEEDED, Reason.PROMPT_TOO_LONG})
"""Reasons that another request may not have."""
DECISIONS = 64
"""In one go, before the event loop has its turn."""
LONGEST_RETRY_S = 60
FORGETTING = 0.2
"""Of the mean time between two places, with each new one."""


@dataclass(slots=True, eq=False)
class _Guest:
    """In the waiting room. `answer` is set once, by whoever decides; a guest that has left takes none."""

    ask: Ask
    since_s: float
    answer: asyncio.Future[Lease | Failure]
    refused: Refused | None = None
    """Why it waits, as of the last look; None: it rather waits than cause a load, or has not been looked at."""
    looked_at: bool = False
    """Not yet: it waits for what those before it wait for."""

    def end(self, answer: Lease | Failure) -> None:
        self.answer.set_result(answer)

    @property
    def ordinary(self) -> bool:
        """Whether what keeps it keeps those behind it as well: it has no history, and its size is no matter."""
        of_its_size = self.refused is not None and not SIZE.isdisjoint(self.refused.counts)
        return not of_its_size and not self.ask.request.tried

    @property
    def settled(self) -> Lease | Failure | None:
        return self.answer.result() if self.answer.done() and not self.answer.cancelled() else None


@dataclass(slots=True)
class _Pace:
    """How often a place for a model has come free for those who wait."""

    last_s: float
    mean_s: float | None = None

    def note(self, now_s: float) -> None:
        passed_s, self.last_s = now_s - self.last_s, now_s
        known = self.mean_s
        self.mean_s = passed_s if known is None else known + FORGETTING * (passed_s - known)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What `GET /v1/fleet` tells of those who wait for a model."""

    model: str
    requests: int
    oldest_s: float
    eta_s: float | None


@dataclass(slots=True)
class _Chores:
    """What is to be looked at, and the timers for it."""

    models: dict[str, None] = field(default_factory=dict)
    soon: asyncio.Handle | None = None
    later: asyncio.TimerHandle | None = None


class Admission:
    """Owned by the event loop. `changed` is to be called after each change of a view."""

    def __init__(
        self,
        views: Views,
        route: Callable[[Request], Chosen | Refused],
        tables: Callable[[], MemoryTables],
        timings: Timings,
        most_waiting: int,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._views = views
        self._route = route
        self._tables = tables
        self._timings = timings
        self._metrics = metrics
        self._clock = clock
        self._room: WaitingRoom[_Guest] = WaitingRoom(most_waiting)
        self._paces: dict[str, _Pace] = {}
        self._loads: dict[str, float] = {}
        """By model: when a request was last sent to where it had to be loaded."""
        self._chores = _Chores()

    # -- of one request

    async def lease(self, ask: Ask) -> Lease | Failure:
        """A place, or why there is none; cancelled, it holds none."""
        now = self._clock()
        model = ask.request.model
        guest = _Guest(ask, now, asyncio.get_running_loop().create_future())
        if not self._room.waiting(model):
            decided = self._decide(guest, now)
            if decided is not None:
                return decided
        waiter = self._room.waiter(model, ask.key, ask.priority, ask.arrived_s, guest)
        match self._room.join(waiter):
            case Full(waiting):
                return self._no_room(model, waiting)
            case Joined(displaced):
                if displaced is not None and not displaced.guest.answer.done():
                    displaced.guest.end(self._no_room(model, self._room.waiting(model)))
        self._note_waiting(waiter)
        outcome = "cancelled"
        try:
            answer = await self._answer(guest)
            outcome = _outcome(guest, answer)
            return answer
        finally:
            self._room.leave(waiter)
            self._note_left(waiter, outcome)

    async def _answer(self, guest: _Guest) -> Lease | Failure:
        try:
            async with asyncio.timeout(self._timings.wait_s):
                return await guest.answer
        except TimeoutError:
            return guest.settled or self._too_late(guest)
        except asyncio.CancelledError:
            # The place may have been given in the very moment in which the client went away.
            if isinstance(guest.settled, Lease):
                guest.settled.close()
            raise

    def _decide(self, guest: _Guest, now_s: float) -> Lease | Failure | None:
        """None: it waits. Nothing awaits between the decision and the place that is held for it."""
        request = guest.ask.request
        guest.looked_at = True
        match self._route(request):
            case Chosen() as chosen:
                if self._rather_wait(guest, chosen, now_s):
                    guest.refused = None
                    return None
                return self._take(guest.ask, chosen.provider_id, now_s)
            case Refused() as refused:
                guest.refused = refused
                if prospects.hopeful(request, refused, self._views, now_s, self._timings, self._tables()):
                    return None
                return guest.ask.refuse(refused)

    def _rather_wait(self, guest: _Guest, chosen: Chosen, now_s: float) -> bool:
        request = guest.ask.request
        waited_s = now_s - max(guest.since_s, self._loads.get(request.model, guest.since_s))
        return prospects.rather_wait(request, chosen, self._views, waited_s, now_s, self._timings, self._tables())

    def _take(self, ask: Ask, provider_id: str, now_s: float) -> Lease | Failure:
        if prospects.cold(self._views[provider_id], ask.request.model):
            self._loads[ask.request.model] = now_s
        return ask.take(provider_id)

    # -- of all that wait

    def changed(self, provider_id: str) -> None:
        """Something about the provider is different now."""
        if not len(self._room):
            return
        view = self._views.get(provider_id)
        self._look(model for model in self._room.models if view is None or model in view.models)

    def waiting(self) -> list[Waiting]:
        now = self._clock()
        return [self._waiting(model, now) for model in self._room.models]

    def give_up(self) -> None:
        """The coordinator ends: nobody who waits will be served here."""
        for model in self._room.models:
            for waiter in list(self._room.in_turn(model)):
                self._room.leave(waiter)
                if not waiter.guest.answer.done():
                    waiter.guest.end(refusals.stopping())

    def _look(self, models: Iterable[str]) -> None:
        self._chores.models.update(dict.fromkeys(models))
        if self._chores.models and self._chores.soon is None:
            self._chores.soon = asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """As many decisions as one turn of the event loop may take; the rest in its next."""
        self._chores.soon = None
        left = DECISIONS
        models, self._chores.models = list(self._chores.models), {}
        for number, model in enumerate(models):
            left = self._serve(model, left)
            if not left:
                self._look(models[number:])
                return

    def _serve(self, model: str, left: int) -> int:
        """Gives their places to those who can have one, in turn. Returns how many more decisions may be made."""
        passed_over: set[Waiter[_Guest]] = set()
        while left and len(passed_over) < LOOKED_AT:
            waiter = next((one for one in self._room.in_turn(model) if one not in passed_over), None)
            if waiter is None:
                break
            left -= 1
            if not self._settle(waiter):
                passed_over.add(waiter)
                if waiter.guest.ordinary:
                    break
        return left

    def _settle(self, waiter: Waiter[_Guest]) -> bool:
        """Whether it waits no longer. The boundary of one request: what goes wrong here ends it and no other."""
        guest = waiter.guest
        if guest.answer.done():  # its client went away a moment ago
            self._room.leave(waiter)
            return True
        now = self._clock()
        try:
            decided = self._decide(guest, now)
        except Exception as error:
            log.failure("admission_failed", error, request_id=guest.ask.name)
            decided = internal_error("The coordinator has failed at this request.")
        if decided is None:
            return False
        if isinstance(decided, Lease):
            self._paces.setdefault(waiter.model, _Pace(guest.since_s)).note(now)
            self._room.serve(waiter)
        else:
            self._room.leave(waiter)
        guest.end(decided)
        return True

    def _recheck(self) -> None:
        self._chores.later = None
        if len(self._room):
            self._look(self._room.models)
            self._arm()

    def _arm(self) -> None:
        if self._chores.later is None:
            self._chores.later = asyncio.get_running_loop().call_later(RECHECK_S, self._recheck)

    # -- what is told of it

    def _waiting(self, model: str, now_s: float) -> Waiting:
        since = [waiter.guest.since_s for waiter in self._room.in_turn(model)]
        return Waiting(model, len(since), now_s - min(since), self._eta_s(model, now_s))

    def _eta_s(self, model: str, now_s: float) -> float | None:
        return prospects.eta_s(model, self._views, self._tables(), now_s)

    def _note_waiting(self, waiter: Waiter[_Guest]) -> None:
        """Those before it may lack what it has not asked for: it is looked at as well."""
        waiting = self._room.waiting(waiter.model)
        self._metrics.waiting.labels(waiter.model).set(waiting)
        self._arm()
        self._look([waiter.model])
        log.event(
            "request_waiting",
            request_id=waiter.guest.ask.name,
            model=waiter.model,
            key=waiter.key,
            waiting=waiting,
            reason=self._why_waits(waiter),
            eta_s=self._eta_s(waiter.model, self._clock()),
        )

    def _why_waits(self, waiter: Waiter[_Guest]) -> str:
        """Of one that found others waiting: why the first of those does."""
        if waiter.guest.looked_at:
            return _why(waiter.guest)
        before = (one.guest for one in self._room.in_turn(waiter.model))
        return _why(next((guest for guest in before if guest.looked_at), waiter.guest))

    def _note_left(self, waiter: Waiter[_Guest], outcome: str) -> None:
        guest, waited_s = waiter.guest, self._clock() - waiter.guest.since_s
        self._metrics.waited.labels(outcome).observe(waited_s)
        left = self._room.waiting(waiter.model)
        if left:
            self._metrics.waiting.labels(waiter.model).set(left)
        else:
            self._metrics.waiting.remove(waiter.model)
            self._paces.pop(waiter.model, None)
        log.event("request_waited", request_id=guest.ask.name, waited_s=waited_s, outcome=outcome)

    def _no_room(self, model: str, waiting: int) -> Failure:
        self._metrics.refusals.labels("queue_full").inc()
        return refusals.no_room(model, waiting, self._retry_after_s(model))

    def _too_late(self, guest: _Guest) -> Failure:
        model, now = guest.ask.request.model, self._clock()
        self._metrics.refusals.labels("queue_timeout").inc()
        verdict = self._route(guest.ask.request)
        guest.refused = verdict if isinstance(verdict, Refused) else None
        eta_s = self._eta_s(model, now)
        return refusals.waited_in_vain(
            model, now - guest.since_s, _why(guest), eta_s, guest.refused, self._retry_after_s(model)
        )

    def _retry_after_s(self, model: str) -> int:
        """When the line there is now will have been served at the pace of late, or the model have been loaded."""
        pace = self._paces.get(model)
        line_s = pace.mean_s * self._room.waiting(model) if pace is not None and pace.mean_s is not None else 0.0
        load_s = self._eta_s(model, self._clock()) or 0.0
        return max(refusals.RETRY_AFTER_S, min(LONGEST_RETRY_S, math.ceil(max(line_s, load_s))))


def _why(guest: _Guest) -> str:
    reason = None if guest.refused is None else guest.refused.reason
    return "model_loading" if reason is None else reason.value


def _outcome(guest: _Guest, answer: Lease | Failure) -> str:
    if isinstance(answer, Lease):
        return "served"
    return "refused" if guest.settled is not None else "timed_out"
