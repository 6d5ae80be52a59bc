"""Random comings and goings of clients and providers: every request ends once, and nothing is held in the end."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator import prospects, routing
from coordinator.fleet import places
from coordinator.mirror import CONCURRENT
from coordinator.routing import Chosen, Request
from tests.fixtures.virtual_time import VirtualLoop
from tests.soak import examples
from tests.unit.coordinator.fleet_play import FleetPlay, PlayedProvider, quick
from tests.unit.coordinator.views import MODEL, TABLES

NAMES = ("one", "two", "three")
MOST_WAITING = 4
TIMINGS = quick(wait_s=20, accept_within_s=10, silence_s=20, resume_within_s=20)
FAILURES = [
    (503, "slot_state", True),
    (429, "queue_full", True),
    (500, "worker_died", True),
    (500, "worker_died", False),
    (400, "invalid_value", False),
    (503, "draining", True),
    (507, "memory_cap", True),
]


class Play(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bounds: dict[str, int] = {}
        """Of a provider that has said what it has from the start: the most that it may be sent."""
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.play = self.do(self._made())

    async def _made(self) -> FleetPlay:
        return FleetPlay(TIMINGS, MOST_WAITING)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def settle(self) -> None:
        self.do(self.play.settled())

    @property
    def here(self) -> list[PlayedProvider]:
        return [one for one in self.play.providers.values() if not one.socket.closed]

    @property
    def at_work(self) -> list[tuple[PlayedProvider, str]]:
        return [(one, request_id) for one in self.here for request_id in one.open]

    @property
    def held(self) -> set[str]:
        """Jobs that have a place somewhere: one each."""
        held = [id.split(".")[0] for view in self.play.hub.views.values() for id in (*view.holds, *view.counted)]
        assert len(held) == len(set(held))
        return set(held)

    # -- clients

    @rule(key=st.integers(1, 3), priority=st.integers(0, 1), stream=st.booleans(), model=st.sampled_from([MODEL, "no"]))
    def arrives(self, key: int, priority: int, stream: bool, model: str) -> None:
        self.do(self._arrive(key, priority, stream, model))
        self.settle()

    async def _arrive(self, key: int, priority: int, stream: bool, model: str) -> None:
        self.play.ask(key, priority, stream, model)

    @rule(key=st.integers(1, 3), count=st.integers(2, 6))
    def many_arrive_at_once(self, key: int, count: int) -> None:
        self.do(self.play.asked(count, key))
        self.settle()

    @precondition(lambda self: any(not one.task.done() for one in self.play.clients))
    @rule(data=st.data(), turns=st.integers(0, 6))
    def goes_away(self, data: st.DataObject, turns: int) -> None:
        """A few turns after whatever has happened last."""
        client = data.draw(st.sampled_from([one for one in self.play.clients if not one.task.done()]))
        self.do(_turns(turns))
        client.task.cancel()
        self.settle()

    # -- providers

    @initialize(concurrency=st.integers(1, 4), loaded=st.booleans())
    def one_is_there(self, concurrency: int, loaded: bool) -> None:
        self.joins("one", concurrency, loaded)

    @rule(name=st.sampled_from(NAMES), concurrency=st.integers(1, 4), loaded=st.booleans())
    def joins(self, name: str, concurrency: int, loaded: bool) -> None:
        """Or comes back, with nothing of what it had."""
        again = name in self.play.providers
        self.bounds[name] = places(concurrency if loaded and not again else max(CONCURRENT, concurrency))
        self.do(self.play.join(name, concurrency, loaded))
        self.settle()

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def is_cut_off(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.here)).socket.hang_up()
        self.settle()

    @precondition(lambda self: self.here)
    @rule(data=st.data(), status=st.sampled_from(["idle", "idle", "draining"]))
    def beats(self, data: st.DataObject, status: str) -> None:
        played = data.draw(st.sampled_from(self.here))
        played.loaded = played.loaded or bool(played.open)
        played.beat(status)
        self.settle()

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), how=st.sampled_from(["accept", "chunk", "notice", "complete", "complete"]))
    def answers(self, data: st.DataObject, how: str) -> None:
        played, request_id = data.draw(st.sampled_from(self.at_work))
        if not played.open[request_id].accepted:
            played.accept(request_id)
        match how:
            case "chunk":
                played.chunk(request_id)
            case "notice":
                played.notice(request_id, "preempt-keepalive")
            case "complete":
                played.complete(request_id)
            case _:
                pass
        self.settle()

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), failure=st.sampled_from(FAILURES))
    def fails(self, data: st.DataObject, failure: tuple[int, str, bool]) -> None:
        played, request_id = data.draw(st.sampled_from(self.at_work))
        played.fail(request_id, *failure)
        self.settle()

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def completes_while_clients_go_away(self, data: st.DataObject) -> None:
        """Its own, or one that waits for its place."""
        played, request_id = data.draw(st.sampled_from(self.at_work))
        going = data.draw(st.lists(st.sampled_from([one for one in self.play.clients if not one.task.done()])))
        played.complete(request_id)
        for turns, client in enumerate(going, data.draw(st.integers(0, 12))):
            self.do(_turns(turns))
            client.task.cancel()
        self.settle()

    @rule(ids=st.sets(st.sampled_from(NAMES), max_size=1))
    def operators_order(self, ids: set[str]) -> None:
        drained = {one.provider_id for name, one in self.play.providers.items() if name in ids}
        self.do(_call(self.play.hub.drain, frozenset(drained)))
        self.settle()

    @rule(passed_s=st.sampled_from([0.3, 1.1, 5.0, 16.0, 60.0]), beating=st.booleans())
    def time_passes(self, passed_s: float, beating: bool) -> None:
        while passed_s > 0:
            if beating:
                for played in self.here:
                    played.beat()
            self.do(asyncio.sleep(min(5.0, passed_s)))
            passed_s -= 5.0
        self.settle()

    # -- what always holds

    @invariant()
    def the_room_is_bounded(self) -> None:
        assert self.play.waiting <= MOST_WAITING

    @invariant()
    def what_is_held_is_what_runs(self) -> None:
        running = {one.job.id for one in self.play.clients if not one.task.done()}
        assert self.held <= running
        assert len(self.held) + self.play.waiting == len(running), "a request that neither waits nor has a place"

    @invariant()
    def no_provider_is_sent_more_than_it_has_places_for(self) -> None:
        for name, played in self.play.providers.items():
            if not played.socket.closed:
                assert len(played.open) <= self.bounds[name]

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        """A request without a history, where somebody has the model loaded and a place."""
        play, now = self.play, self.loop.time()
        if not play.waiting:
            return
        verdict = routing.route(Request(MODEL, 5), play.hub.views, now, random.Random(0), play.timings, TABLES)
        if isinstance(verdict, Chosen) and not prospects.cold(play.hub.views[verdict.provider_id], MODEL):
            running = {one.job.id for one in play.clients if not one.task.done()}
            assert running - self.held <= play.books.opened, "a place stands empty while somebody waits for it"

    @invariant()
    def each_job_is_recorded_once_if_it_was_sent(self) -> None:
        recorded = [row.job_id for row in self.play.books.rows]
        assert len(recorded) == len(set(recorded))
        ended = {one.job.id for one in self.play.clients if one.task.done()}
        assert set(recorded) == ended & self.play.books.opened
        assert all(row.attempts <= 3 for row in self.play.books.rows)

    def teardown(self) -> None:
        """With patience, everything ends by itself."""
        try:
            for _ in range(20):
                self.do(asyncio.sleep(10))
            assert all(one.task.done() for one in self.play.clients), "a request that never ends"
            self.what_is_held_is_what_runs()
            assert self.play.waiting == 0
            for one in self.play.clients:
                assert one.task.cancelled() or one.task.exception() is None
        finally:
            self.do(self.play.end())
            self.loop.close()
            asyncio.set_event_loop(None)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _call(function: Any, *arguments: Any) -> None:
    """In the loop, as everything of a hub is."""
    function(*arguments)


TestPlay = Play.TestCase
TestPlay.settings = settings(max_examples=examples(1000), stateful_step_count=40)
