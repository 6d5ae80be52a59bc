"""A model whose workers keep dying comes back by itself, and until then everybody is told why and for how long not."""

import math

import pytest

from provider.cool_off import FIRST_S, FORGOTTEN_AFTER_S
from provider.errors import RequestFailed, SelfTestFailed, WorkerError
from provider.keeping import QUICK_DEATHS
from provider.memory_findings import judge_running
from provider.metrics import exposition
from provider.running import FailedSlot, Running
from provider.status import Status
from tests.unit.provider.residency_world.builds import build
from tests.unit.provider.residency_world.invariants import check_rest
from tests.unit.provider.residency_world.world import World
from tests.unit.provider.test_residency_races import failure, played, share


async def wear_out(world: World, id: str) -> None:
    """Its worker dies until it is given up; no second passes after that."""
    for _ in range(QUICK_DEATHS):
        if world.model(id).slot.status != "ready":
            await world.pass_time(5)
        await world.die(id)
        await world.open_all()
    assert world.model(id).slot.status == "failed"


async def state_of(world: World, id: str) -> str | None:
    told = await world.complete(world.residency.capacity())
    return next((one.state for one in told.slots if one.model == id), None)


@played
async def test_while_it_cools_off_requests_are_refused_at_once_and_told_why_and_for_how_long() -> None:
    world = World([build("a", 4), build("b", 4)])
    await world.complete(world.residency.start())
    await world.load("a", "b")
    await wear_out(world, "a")
    await world.pass_time(17)
    for refused in (await world.chat("1", "a"), await world.begin(world.residency.pre_accept("a"))):
        assert refused.done()
        with pytest.raises(RequestFailed) as caught:
            await refused
        told = caught.value.failure
        assert (told.status, told.code, told.retryable) == (503, "slot_state", True)
        assert told.retry_after_s == FIRST_S - 17
        assert "its worker keeps dying (signal 9). It is tried again in 43 s" in told.message
    assert await state_of(world, "a") == "failed"
    assert world.worker("b").pool_bytes == share(world, "b"), "the others have its room"
    await check_rest(world)


@played
async def test_every_surface_tells_the_truth_before_during_and_after() -> None:
    world = World([build("a", 4)])
    status = Status(world.residency)
    await world.complete(world.residency.start())
    await world.load("a")
    assert status.health() == "ok"
    await wear_out(world, "a")
    assert status.health() == "stalled"
    [props] = status.props()["models"]
    assert (props["state"], props["retry_in_s"]) == ("failed", FIRST_S)
    assert props["reason"] == "its worker keeps dying (signal 9)"
    told = exposition(world.residency).decode()
    assert 'darkbloom_worker_given_up{model="a"} 1.0' in told
    assert 'darkbloom_worker_retry_seconds{model="a"} 60.0' in told
    assert 'darkbloom_worker_failures_total{model="a"} 1.0' in told
    changes = world.changes
    await world.pass_time(math.ceil(FIRST_S) + 1)
    assert world.changes > changes, "a coordinator is told at once"
    assert (status.health(), await state_of(world, "a")) == ("ok", None)
    assert status.props()["models"][0]["retry_in_s"] is None
    assert 'darkbloom_worker_given_up{model="a"} 0.0' in exposition(world.residency).decode()
    await check_rest(world)


def test_doctor_says_when_it_is_tried_again_and_what_is_not() -> None:
    slots = FailedSlot("a", "its worker keeps dying (signal 9)", 41.6), FailedSlot("b", "nonsense.", None)
    waits, ended = judge_running(Running(pid=1, age_s=0.0, advertised=("a", "b"), failed=slots), 0.0)
    assert (waits.status, waits.message) == ("warn", "a is not running: its worker keeps dying (signal 9).")
    assert "by itself in 42 s" in (waits.fix or "")
    assert (ended.status, ended.message) == ("fail", "b is not running: nonsense.")


@played
async def test_the_first_request_after_the_cool_off_has_it_loaded_and_is_served() -> None:
    world = World([build("a", 4)])
    await world.load("a")
    await wear_out(world, "a")
    await world.pass_time(math.ceil(FIRST_S))
    chat = await world.chat("1", "a")
    await world.open_all()
    await world.finish("1", "a")
    assert await chat == "."
    await check_rest(world)


@played
async def test_a_model_that_was_loaded_at_start_is_loaded_again_without_being_asked_for() -> None:
    world = World([build("a", 4), build("b", 4)], preload=("a",))
    await world.complete(world.residency.start())
    await world.load("b")
    await wear_out(world, "a")
    await wear_out(world, "b")
    await world.pass_time(math.ceil(FIRST_S) + 2)
    assert world.resident == {"a"}
    await check_rest(world)


@played
async def test_a_load_that_fails_again_makes_the_next_cool_off_longer_and_lasting_forgets_it() -> None:
    world = World([build("a", 4)])
    slot = world.model("a").slot
    await world.load("a")
    await wear_out(world, "a")
    for length in (2 * FIRST_S, 4 * FIRST_S):
        await world.loop.advance(slot.standing.retry_in_s or 0.0)
        chat = await world.chat("1", "a")
        await world.open_until("start:a")
        await world.open("start:a", result=WorkerError("the worker ended while it was loading the model (signal 9)"))
        await world.open_all()
        with pytest.raises(RequestFailed) as caught:
            await chat
        assert caught.value.failure.retry_after_s == length
        assert "while it was loading the model (signal 9)" in caught.value.failure.message
        assert (slot.status, slot.standing.retry_in_s) == ("failed", length)
        await check_rest(world)
    await world.loop.advance(slot.standing.retry_in_s or 0.0)
    await world.load("a")
    await world.loop.advance(FORGOTTEN_AFTER_S)
    await wear_out(world, "a")
    assert slot.standing.retry_in_s == FIRST_S


@played
async def test_a_load_by_hand_ends_the_cool_off_and_requests_wait_for_it() -> None:
    world = World([build("a", 4)])
    await world.load("a")
    await wear_out(world, "a")
    load = await world.begin(world.residency.load("a"))
    await world.open("memory")  # it is under way, and not yet at its worker
    chat = await world.chat("1", "a")
    await world.open_all()
    await load
    await world.finish("1", "a")
    assert await chat == "."
    await check_rest(world)


@played
async def test_a_load_that_fails_for_want_of_memory_is_no_failure_of_the_model() -> None:
    world = World([build("a", 4)])
    slot = world.model("a").slot
    await world.load("a")
    await wear_out(world, "a")
    await world.pass_time(math.ceil(FIRST_S))
    world.others_bytes = world.physical_bytes
    refused = await world.chat("1", "a")
    await world.open_all()
    assert await failure(refused) == (503, "memory_cap")
    assert slot.status == "unloaded"
    world.others_bytes = 0
    await world.load("a")
    assert (slot.status, slot.standing.failures) == ("ready", 1)
    await check_rest(world)


@played
async def test_a_model_that_had_never_failed_is_tried_again_for_each_request() -> None:
    world = World([build("a", 4)])
    for _ in range(2):
        chat = await world.chat("1", "a")
        await world.open_until("start:a")
        await world.open("start:a", result=WorkerError("gone"))
        await world.open_all()
        assert await failure(chat) == (503, "slot_state")
        assert world.model("a").slot.status == "unloaded"


@played
async def test_what_computes_nonsense_does_not_come_back() -> None:
    world = World([build("a", 4)])
    await world.complete(world.residency.start())
    await world.load("a")
    await world.die("a")
    await world.open_until("start:a")
    await world.open("start:a", result=SelfTestFailed("nonsense"))
    await world.pass_time(2 * math.ceil(FIRST_S))
    assert (world.model("a").slot.status, world.model("a").slot.standing.retry_in_s) == ("failed", None)
    assert await failure(await world.chat("1", "a")) == (503, "slot_state")
    await check_rest(world)
