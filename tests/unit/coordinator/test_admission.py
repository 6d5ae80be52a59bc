"""Who gets a place at a provider, and when: in virtual time, over sockets in memory."""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from coordinator.admission import Admission
from coordinator.breaker import FAILURES, FIRST_S, TOGETHER_S
from coordinator.lease import Lease
from coordinator.metrics import Metrics
from coordinator.reasons import Reason
from coordinator.routing import Chosen, Refused, Request
from coordinator.views import Views
from provider.api.wire import Failure
from provider.protocol import Cancel, InferenceComplete, ModelsUpdate
from tests.fixtures.virtual_time import run, settle
from tests.unit.coordinator.fleet_play import Client, FleetPlay, PlayedProvider, quick
from tests.unit.coordinator.views import MODEL, TABLES, advert, slot


async def finish_one(play: FleetPlay, played: PlayedProvider) -> str:
    """The oldest request there is accepted and answered; returns its id."""
    played.listen()
    request_id = next(iter(played.open))
    if not played.open[request_id].accepted:
        played.accept(request_id)
    played.complete(request_id)
    await play.settled()
    return request_id


def test_who_finds_everyone_full_waits_and_is_served_when_a_place_comes_free() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        clients = await play.asked(3)
        await play.settled()
        assert (len(one.open), play.waiting) == (2, 1)
        await finish_one(play, one)
        assert (len(one.open), play.waiting) == (2, 0)
        for _ in range(2):
            await finish_one(play, one)
        assert all(client.done for client in clients)
        assert play.held(one) == 0
        await play.end()

    run(scene())


def test_a_place_that_a_heartbeat_has_counted_is_given_on_at_once() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        await play.asked(4)
        await play.settled()
        for request_id in list(one.open):
            one.accept(request_id)
        one.beat()
        await play.settled()
        assert play.hub.views[one.provider_id].slots[MODEL].running == 2
        began = play.loop.time()
        await finish_one(play, one)
        await finish_one(play, one)
        assert (len(one.open), play.waiting, play.loop.time()) == (2, 0, began)
        await play.end()

    run(scene())


@pytest.mark.parametrize("event", ["register", "beat", "models"])
def test_new_capacity_of_any_kind_is_given_to_those_who_wait(event: str) -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=1)
        await play.asked(2)
        assert play.waiting == 1
        if event == "register":
            await play.join("two")
        elif event == "beat":
            one.beat(slots=(slot(max_concurrency=4),))
        else:
            two = await play.join("two", models=("other",))
            assert play.waiting == 1
            two.socket.say(ModelsUpdate(models=[advert()]))
        await play.settled()
        assert play.waiting == 0
        await play.end()

    run(scene())


def test_two_keys_take_turns_however_much_one_has_asked_for() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=1)
        await play.asked(9, key=1)
        await play.asked(4, key=2)
        await play.settled()
        order = []
        while one.open:
            job = (await finish_one(play, one)).split(".")[0]
            order.append(next(client.job.token_id for client in play.clients if client.job.id == job))
        assert order == [1, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1]
        await play.end()

    run(scene())


def test_nobody_who_comes_later_passes_those_who_wait() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=1)
        await play.asked(2)
        one.listen()
        (first,) = one.open
        one.accept(first)
        one.complete(first)
        late = play.ask()  # comes before the coordinator has heard of the free place
        await play.settled()
        assert list(one.open) == ["j1.1"]
        assert not late.task.done()
        await play.end()

    run(scene())


def test_priority_counts_among_the_requests_of_one_key() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=1)
        await play.asked(3)
        await play.asked(1, priority=5)
        await play.settled()
        order = [await finish_one(play, one) for _ in range(4)]
        assert order == ["j0.1", "j3.1", "j1.1", "j2.1"]
        await play.end()

    run(scene())


def test_a_full_room_refuses_and_makes_way_for_a_key_that_has_less() -> None:
    async def scene() -> None:
        play = FleetPlay(most_waiting=3)
        await play.join("one", max_concurrency=1)
        clients = await play.asked(5, key=1)
        await play.settled()
        failure = clients[4].failure
        assert (failure.status, failure.code, play.waiting) == (429, "queue_full", 3)
        assert failure.retry_after_s is not None
        (other,) = await play.asked(1, key=2)
        await play.settled()
        assert not other.task.done()
        assert clients[3].failure.code == "queue_full"
        assert play.waiting == 3
        await play.end()

    run(scene())


def test_who_has_waited_too_long_is_told_why_and_when_to_come_again() -> None:
    async def scene() -> None:
        play = FleetPlay(quick(wait_s=30))
        one = await play.join("one", max_concurrency=1)
        _, late = await play.asked(2)
        for _ in range(31):
            one.beat()
            await asyncio.sleep(1)
        failure = late.failure
        assert (failure.status, failure.code) == (503, "queue_timeout")
        assert (failure.detail["reason"], failure.detail["waited_s"]) == ("queue_full", 30)
        assert failure.retry_after_s is not None
        assert "j1" not in {row.job_id for row in play.books.rows}  # nothing was sent, so nothing is billed
        assert play.waiting == 0
        await play.end()

    run(scene())


@pytest.mark.parametrize("when", ["waiting", "given", "sent", "accepted", "streaming"])
def test_a_client_that_goes_away_leaves_nothing_behind_from_any_state(when: str) -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=1)
        first, gone = await play.asked(2, stream=True)
        await play.settled()
        assert play.waiting == 1
        if when != "waiting":
            one.accept("j0.1")
            one.complete("j0.1")
            if when == "given":
                await _until_promised(play, gone)
            else:
                await play.settled()
        if when in ("accepted", "streaming"):
            one.accept("j1.1")
        if when == "streaming":
            one.chunk("j1.1")
        if when in ("accepted", "streaming"):
            await play.settled()
        gone.task.cancel()
        await play.settled()
        assert gone.task.cancelled()
        assert (play.waiting, len(one.open)) == (0, 1 if when == "waiting" else 0)
        if when != "waiting":
            assert [one for one in one.socket.heard if isinstance(one, Cancel)] == [Cancel(request_id="j1.1")]
            assert first.done
            assert play.held(one) == 0
        rows = [row.job_id for row in play.books.rows]
        assert rows == ([] if when == "waiting" else ["j0", "j1"])
        await play.end()

    run(scene())


async def _until_promised(play: FleetPlay, client: Client) -> None:
    for _ in range(100):
        if _promised(play, client):
            return
        await asyncio.sleep(0)
    raise AssertionError("no place was given")


def _promised(play: FleetPlay, client: Client) -> bool:
    """Its place is held, and it has not heard of it yet."""
    held = (hold for view in play.hub.views.values() for hold in view.holds)
    return any(request_id.startswith(f"{client.job.id}.") for request_id in held)


@dataclass
class Stubborn:
    """An admission.Ask that is told what becomes of it."""

    name: str
    verdict: Chosen | Refused | Exception = field(default_factory=lambda: Refused({Reason.QUEUE_FULL: 1}))
    key: int = 1
    priority: int = 0
    arrived_s: float = 0.0

    @property
    def request(self) -> Request:
        return Request(MODEL, 5, name=self.name)

    def take(self, provider_id: str) -> Lease | Failure:
        raise NotImplementedError

    def refuse(self, refused: Refused) -> Failure:
        return Failure(404, "gone", "gone", "gone")


def test_what_goes_wrong_in_a_decision_ends_that_request_and_no_other() -> None:
    asks = {one.name: one for one in (Stubborn("cursed"), Stubborn("next"))}

    def route(request: Request) -> Chosen | Refused:
        verdict = asks[request.name].verdict
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        metrics = Metrics(dict)
        admission = Admission(Views(), route, lambda: TABLES, quick(), 10, metrics, clock)
        cursed, other = (asyncio.create_task(admission.lease(one)) for one in asks.values())
        await settle()
        assert [one.requests for one in admission.waiting()] == [2]
        asks["cursed"].verdict = ArithmeticError("a fault")
        asks["next"].verdict = Refused({Reason.MODEL_NOT_SERVED: 1})
        await asyncio.sleep(1)
        first, second = await cursed, await other
        assert isinstance(first, Failure)
        assert isinstance(second, Failure)
        assert (first.status, first.code, second.code) == (500, "internal_error", "gone")
        assert admission.waiting() == []

    run(scene())


def test_a_place_given_in_the_moment_of_the_deadline_is_taken_not_lost() -> None:
    async def scene() -> None:
        play = FleetPlay(quick(wait_s=10))
        one = await play.join("one", max_concurrency=1)
        _, lucky = await play.asked(2)
        await asyncio.sleep(10 - 1e-4)
        await finish_one(play, one)
        await asyncio.sleep(1)
        assert list(one.open) == ["j1.1"]
        await finish_one(play, one)
        assert lucky.done
        await play.end()

    run(scene())


def test_only_what_waiting_cannot_help_is_refused_at_once() -> None:
    async def scene() -> None:
        play = FleetPlay()
        await play.join("one")
        (unknown,) = await play.asked(1, model="unknown")
        assert (unknown.failure.status, unknown.failure.code) == (404, "model_not_found")
        play.providers["one"].beat(status="draining")
        await settle()
        (refused,) = await play.asked(1)
        assert (refused.failure.status, refused.failure.code) == (503, Reason.DRAINING.value)
        await play.end()

    run(scene())


def test_a_provider_that_falls_silent_is_waited_for_until_it_is_lost() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        await asyncio.sleep(20)
        (hopeful,) = await play.asked(1)
        assert play.waiting == 1
        one.beat()
        await play.settled()
        assert len(one.open) == 1
        await finish_one(play, one)
        assert hopeful.done
        await asyncio.sleep(20)
        (in_vain,) = await play.asked(1)
        await asyncio.sleep(30)
        assert in_vain.failure.code == Reason.LOST.value
        await play.end()

    run(scene())


def test_a_provider_that_was_cut_off_is_waited_for_a_little_and_one_that_said_goodbye_is_not() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        one.socket.hang_up()
        await settle()
        (hopeful,) = await play.asked(1)
        assert play.waiting == 1
        one = await play.join("one")
        await play.settled()
        await finish_one(play, one)
        assert hopeful.done
        one.socket.hang_up()
        await settle()
        (in_vain,) = await play.asked(1)
        await asyncio.sleep(11)
        assert in_vain.failure.code == Reason.DISCONNECTED.value
        one = await play.join("one")
        one.beat(status="draining")
        await settle()
        one.socket.hang_up()
        await settle()
        (refused,) = await play.asked(1)
        assert refused.failure.code == Reason.DISCONNECTED.value
        await play.end()

    run(scene())


def test_many_who_want_a_cold_model_cause_one_load() -> None:
    async def scene() -> None:
        play = FleetPlay()
        machines = [await play.join(name, max_concurrency=2, loaded=False) for name in ("one", "two", "three")]
        await play.asked(5)
        await play.settled()
        (loading,) = [machine for machine in machines if machine.open]
        assert (len(loading.open) + play.waiting, play.waiting > 0) == (5, True)
        (told,) = play.dispatcher.admission.waiting()
        assert told.eta_s is not None
        loading.beat(slots=(slot(state="loading", max_concurrency=2),))
        await play.settled()
        loading.loaded = True
        loading.beat()
        await play.settled()
        while loading.open:
            await finish_one(play, loading)
        assert [machine.asked for machine in machines if machine is not loading] == [0, 0]
        assert all(client.done for client in play.clients)
        await play.end()

    run(scene())


def test_a_load_that_fails_is_tried_elsewhere_and_not_everywhere() -> None:
    async def scene() -> None:
        play = FleetPlay()
        machines = [await play.join(name, loaded=False) for name in ("one", "two", "three")]
        await play.asked(4)
        await play.settled()
        (first,) = [machine for machine in machines if machine.open]
        for request_id in list(first.open):
            first.accept(request_id)
            first.fail(request_id, code="slot_state")
        await play.settled()
        again = [machine for machine in machines if machine.open]
        assert len(again) == 1
        assert sum(len(machine.open) for machine in again) + play.waiting == 4
        await play.end()

    run(scene())


def test_where_the_model_is_loaded_and_full_a_second_load_is_caused_only_after_the_time_it_takes() -> None:
    async def scene() -> None:
        play = FleetPlay()
        warm = await play.join("warm", max_concurrency=1)
        cold = await play.join("cold", max_concurrency=1, loaded=False)
        other = await play.join("other", max_concurrency=1, loaded=False)
        await play.asked(4)
        await play.settled()
        assert (len(warm.open), len(cold.open) + len(other.open), play.waiting) == (1, 0, 3)
        took_s = 0
        while not cold.open and not other.open:
            for machine in (warm, cold, other):
                machine.beat()
            await asyncio.sleep(1)
            took_s += 1
            for machine in (warm, cold, other):
                machine.listen()
        assert 2 <= took_s <= 60
        assert len(cold.open) + len(other.open) == 1  # and no third: what loads will serve them too
        await play.end()

    run(scene())


def test_who_fails_is_not_asked_again_and_three_attempts_are_all() -> None:
    async def scene() -> None:
        play = FleetPlay()
        machines = [await play.join(name) for name in ("one", "two", "three", "four")]
        (client,) = await play.asked(1)
        for _ in range(3):
            await play.settled()
            (machine,) = [machine for machine in machines if machine.open]
            machine.fail(next(iter(machine.open)), 500, "worker_died")
        await play.settled()
        assert client.failure.code == "worker_died"
        assert Counter(machine.asked for machine in machines) == {1: 3, 0: 1}
        assert [row.attempts for row in play.books.rows] == [3]
        await play.end()

    run(scene())


def test_a_failed_request_waits_for_another_that_is_only_full() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=1)
        two = await play.join("two", max_concurrency=1)
        await play.asked(2)
        await play.settled()
        (broken,) = one.open
        one.notice(broken)
        one.fail(broken, 500, "worker_died")
        await play.settled()
        assert (len(one.open), len(two.open), play.waiting) == (0, 1, 1)
        (late,) = await play.asked(1)
        await play.settled()
        assert (len(one.open), play.waiting) == (1, 1)  # who has no such history is not kept from it
        await finish_one(play, two)
        assert (len(two.open), play.waiting) == (1, 0)
        assert next(iter(two.open)).endswith(".2")
        assert not late.task.done()
        await play.end()

    run(scene())


def test_of_a_completion_without_an_answer_nothing_is_billed() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        (client,) = await play.asked(1)
        await play.settled()
        (request_id,) = one.open
        one.accept(request_id)
        usage = {"prompt_tokens": 7_000, "completion_tokens": 9_000}
        one.socket.say(InferenceComplete(request_id=request_id, seq=0, body=None, usage=usage))
        await play.settled()
        assert client.failure.code == "no_answer"
        (billed,) = play.books.rows
        assert (billed.code, billed.prompt_tokens, billed.completion_tokens) == ("no_answer", None, None)
        await play.end()

    run(scene())


def test_who_waits_behind_another_is_logged_with_the_reason_of_that_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        play = FleetPlay()
        await play.join("one")
        await play.asked(5)
        await play.settled()
        assert play.waiting == 3
        await play.end()

    with caplog.at_level(logging.INFO):
        run(scene())
    waiting = [record.getMessage() for record in caplog.records if "request_waiting" in record.getMessage()]
    assert len(waiting) == 3
    assert all("reason=queue_full" in line for line in waiting), waiting


def test_after_the_first_chunk_nothing_is_tried_again() -> None:
    async def scene() -> None:
        play = FleetPlay()
        machines = [await play.join(name) for name in ("one", "two")]
        (client,) = await play.asked(1, stream=True)
        await play.settled()
        (machine,) = [machine for machine in machines if machine.open]
        machine.accept("j0.1")
        machine.chunk("j0.1")
        machine.fail("j0.1", 500, "worker_died")
        await play.settled()
        assert (client.failure.code, client.chunks) == ("worker_died", 1)
        assert sum(machine.asked for machine in machines) == 1
        await play.end()

    run(scene())


def test_a_provider_that_was_full_after_all_is_asked_again_when_it_may_have_room() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        (client,) = await play.asked(1)
        await play.settled()
        one.fail("j0.1", 429, "queue_full")
        await play.settled()
        assert play.waiting == 1
        await asyncio.sleep(3)
        await play.settled()
        assert list(one.open) == ["j0.2"]
        await finish_one(play, one)
        assert client.done
        await play.end()

    run(scene())


def test_who_keeps_failing_is_left_alone_then_tried_with_one_across_reconnects() -> None:
    async def scene() -> None:
        play = FleetPlay(quick(accept_within_s=1000))
        one = await play.join("one")
        for number in range(FAILURES):
            await play.asked(1)
            await play.settled()
            one.fail(f"j{number}.1", 500, "worker_died", retryable=False)
            await asyncio.sleep(TOGETHER_S)
        await play.asked(3)
        one.socket.hang_up()
        await settle()
        one = await play.join("one")
        await play.settled()
        assert (len(one.open), play.waiting) == (0, 3)
        for _ in range(int(FIRST_S) + 1):
            one.beat()
            await asyncio.sleep(1)
        await play.settled()
        assert (len(one.open), play.waiting) == (1, 2)
        await finish_one(play, one)
        assert (len(one.open), play.waiting) == (2, 0)
        await play.end()

    run(scene())


async def fails_at(play: FleetPlay, one: PlayedProvider, key: int = 1, **values: Any) -> None:
    (client,) = await play.asked(1, key=key, **values)
    await play.settled()
    one.fail(f"{client.job.id}.1", 500, "engine_error", retryable=False)
    await asyncio.sleep(TOGETHER_S)
    assert client.failure.code == "engine_error"


def test_one_body_that_always_fails_shuts_a_model_for_nobody() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        for seed in range(4 * FAILURES):
            await fails_at(play, one, variant=0, stream=bool(seed % 2))
        assert play.hub.views[one.provider_id].breakers[MODEL].failures == 1
        (other,) = await play.asked(1, key=2)
        await play.settled()
        await finish_one(play, one)
        assert other.done
        await play.end()

    run(scene())


def test_one_client_alone_shuts_a_model_only_where_nobody_else_is_served() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        await play.asked(1, key=2)
        await play.settled()
        await finish_one(play, one)
        for _ in range(4 * FAILURES):
            await fails_at(play, one)
        assert play.hub.views[one.provider_id].breakers[MODEL].failures == FAILURES - 1
        await fails_at(play, one, key=2)
        (waiting,) = await play.asked(1, key=3)
        await play.settled()
        assert (play.waiting, play.hub.views[one.provider_id].breakers[MODEL].failures) == (1, FAILURES)
        assert not waiting.task.done()
        await play.end()

    run(scene())


def test_a_workers_end_is_one_failure_however_many_chats_it_ended() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=8)
        for key in range(8):
            await play.asked(1, key=key)
        await play.settled()
        for request_id in list(one.open):
            one.fail(request_id, 500, "worker_died", retryable=False)
        await play.settled()
        assert play.hub.views[one.provider_id].breakers[MODEL].failures == 1
        await play.end()

    run(scene())


def test_what_a_request_itself_asks_for_counts_against_nobody() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one")
        for _ in range(2 * FAILURES):
            (client,) = await play.asked(1)
            await play.settled()
            one.fail(f"{client.job.id}.1", 500, "answer_too_large", retryable=False)
            await play.settled()
        assert not play.hub.views[one.provider_id].breakers
        await play.end()

    run(scene())


def test_a_lost_connection_is_one_failure_however_many_requests_it_carried() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one = await play.join("one", max_concurrency=8)
        clients = await play.asked(8, stream=True)
        await play.settled()
        for request_id in list(one.open):
            one.accept(request_id)
            one.chunk(request_id)
        await play.settled()
        one.socket.hang_up()
        await asyncio.sleep(60)
        assert {client.failure.code for client in clients} == {"provider_lost"}
        assert play.hub.views[one.provider_id].breakers[MODEL].failures == 1
        await play.end()

    run(scene())


def test_a_draining_provider_finishes_and_gets_nothing_more() -> None:
    async def scene() -> None:
        play = FleetPlay()
        one, two = await play.join("one", max_concurrency=1), await play.join("two", max_concurrency=1)
        await play.asked(4)
        await play.settled()
        play.hub.drain(frozenset({one.provider_id}))
        await finish_one(play, one)
        assert (len(one.open), play.waiting) == (0, 2)
        one.beat()
        await play.settled()
        assert (len(one.open), play.waiting) == (0, 2)
        while two.open:
            await finish_one(play, two)
        assert all(client.done for client in play.clients)
        play.hub.drain(frozenset())
        await play.asked(2)
        await play.settled()
        assert len(one.open) == 1
        await play.end()

    run(scene())


def test_at_the_end_of_a_drain_those_who_still_wait_are_told_to_go_elsewhere() -> None:
    async def scene() -> None:
        play = FleetPlay()
        await play.join("one", max_concurrency=1)
        _, waiting = await play.asked(2)
        await play.settled()
        play.dispatcher.draining = True
        (refused,) = await play.asked(1)
        assert (refused.failure.status, refused.failure.code) == (503, "draining")
        assert not waiting.task.done()
        play.dispatcher.admission.give_up()
        await play.settled()
        assert (waiting.failure.code, play.waiting) == ("draining", 0)
        await play.end()

    run(scene())
