"""What a provider does when models compete for its memory, beside the races: who leaves, who is refused and how."""

import asyncio

import pytest

from provider.errors import ModelError, RequestFailed, WorkerError
from provider.memory.caps import GIB
from provider.memory.refusal import Why
from provider.protocol import LoadModel, LoadModelStatus, PrefetchStatus, UnloadModel
from tests.unit.provider.residency_world.builds import build
from tests.unit.provider.residency_world.invariants import check, check_rest
from tests.unit.provider.residency_world.virtual_loop import play
from tests.unit.provider.residency_world.world import World
from tests.unit.provider.test_residency_races import failure, played, refusal, share


@played
async def test_a_model_that_can_never_fit_is_refused_at_once_and_nobody_leaves_for_it() -> None:
    world = World([build("small", 4), build("large", 30)])
    await world.load("small")
    worker = world.worker("small")
    chat = await world.chat("1", "large")
    await world.open_all()
    with pytest.raises(RequestFailed) as caught:
        await chat
    told = caught.value.failure
    assert (told.status, told.code, told.retryable) == (503, "memory_cap", True)
    assert told.detail == {
        "reason": "machine_too_small",
        "required_bytes": 36 * GIB + 11 * GIB // 2 + GIB,
        "usable_bytes": 24 * GIB,
        "ceiling_bytes": 28 * GIB,
        "largest_loadable_bytes": (28 * GIB - 13 * GIB // 2) * 5 // 6,
    }
    assert "42.50 GiB" in told.message
    assert "24.00 GiB" in told.message
    assert "17.92 GiB" in told.message
    assert world.worker("small") is worker
    looked_at = await world.begin(world.residency.pre_accept("large"))
    await world.open_all()
    assert await failure(looked_at) == (503, "memory_cap")
    await check_rest(world)


@played
async def test_a_coordinator_is_told_what_a_load_would_need_and_what_is_free() -> None:
    world = World([build("small", 4), build("large", 30)])
    for id in ("small", "large", "nobody"):
        world.operations.handle(LoadModel(model_id=id), world.said.append)
        await world.loop.settle()
        await world.open_all()
    said = [one for one in world.said if isinstance(one, LoadModelStatus)]
    statuses = [(one.model_id, one.status) for one in said]
    assert statuses == [
        ("small", "started"), ("small", "succeeded"), ("large", "started"), ("large", "failed"), ("nobody", "failed"),
    ]  # fmt: skip
    refused = said[3]
    assert (refused.required_bytes, refused.free_bytes) == (36 * GIB + 13 * GIB // 2, 24 * GIB)
    assert (refused.reason or "").startswith("memory_cap: large needs 42.50 GiB")
    assert (said[4].reason or "").startswith("model_not_found: ")


@played
async def test_the_coldest_leave_and_no_more_of_them_than_need_to() -> None:
    world = World([build("a", 4), build("b", 4), build("c", 4), build("new", 8)])
    await world.load("a", "b", "c")
    await world.load("new")  # 16.1 of 16 usable, and a place is missing
    assert world.resident == {"b", "c", "new"}
    await check_rest(world)


@played
async def test_one_larger_model_leaves_rather_than_two_small_ones() -> None:
    world = World([build("a", 2), build("b", 2), build("large", 8), build("new", 10)])
    await world.load("a", "b", "large")
    await world.load("new")  # 18.5 of 16
    assert world.resident == {"a", "b", "new"}


@played
async def test_caches_go_before_models() -> None:
    world = World([build("a", 4), build("new", 10)], others_gib=5)
    await world.load("a")
    world.worker("a").cache_bytes = 2 * GIB
    world.worker("a").think()
    await world.load("new")  # 18.5 of 16.5, and 2.5 in caches
    assert world.resident == {"a", "new"}
    assert world.worker("a").cache_bytes == 0


@played
async def test_who_serves_is_pinned_or_is_waited_for_does_not_leave() -> None:
    world = World([build("busy", 4), build("pinned", 4), build("new", 16)], pinned=("pinned",))
    await world.load("busy", "pinned")
    chat = await world.chat("1", "busy")
    load = await world.begin(world.residency.load("new"))
    await world.open_all()
    assert await refusal(load) is Why.IN_USE
    await world.finish("1", "busy")
    assert await chat == "."
    load = await world.begin(world.residency.load("new"))
    await world.open_all()
    assert await refusal(load) is Why.IN_USE, "the idle one alone would not be enough"
    assert world.resident == {"busy", "pinned"}


@played
async def test_a_chosen_victim_takes_no_request_and_an_unload_of_it_is_not_lost() -> None:
    """Two were chosen; before the second had to go, the others' memory came free, and somebody unloaded it."""
    world = World([build("a", 4), build("b", 4), build("new", 13)], others_gib=3)
    await world.load("a", "b")
    worker = world.worker("b")
    load = await world.begin(world.residency.load("new"))
    await world.open_until("stop:a")
    chat = await world.chat("1", "b")
    unload = await world.begin(world.residency.unload("b"))
    assert world.worker("b").chats == {}
    world.others_bytes = 0
    await world.open_until("start:new")
    assert world.resident == {"b"}
    await world.open_all()
    await asyncio.gather(load, unload)
    assert world.resident == {"new", "b"}, "it left, and came back for the chat"
    assert world.worker("b") is not worker
    await world.finish("1", "b")
    assert await chat == "."
    await check_rest(world)


@played
async def test_a_chat_that_could_not_end_in_less_keeps_its_room_and_the_load_is_refused() -> None:
    world = World([build("a", 4), build("new", 4)])
    await world.load("a")
    before = world.worker("a").pool_bytes
    await world.chat("1", "a", needs_gib=7)
    await world.open_all()
    load = await world.begin(world.residency.load("new"))
    await world.open_all()
    assert await refusal(load) is Why.LATE
    assert world.worker("a").pool_bytes == before
    await world.finish("1", "a")
    await world.load("new")
    await check_rest(world)


@played
async def test_a_grant_that_is_not_acknowledged_in_time_is_given_back() -> None:
    world = World([build("a", 4), build("new", 4)])
    await world.load("a")
    before = world.worker("a").pool_bytes
    load = await world.begin(world.residency.load("new"))
    await world.open_until("grant:a")
    await world.loop.advance(19)
    assert not load.done()
    await world.loop.advance(2)
    await world.open_all(but=("grant",))
    await world.loop.advance(6)  # its cache would be cleared behind the grant
    await world.open_all(but=("grant",))
    assert await refusal(load) is Why.LATE
    await world.open_all()  # the late answer comes now, and then that to the regrow
    assert world.worker("a").pool_bytes == before
    await check_rest(world)


@played
async def test_a_grant_reaches_a_worker_that_is_just_starting_in_a_dead_ones_place() -> None:
    world = World([build("a", 4), build("new", 4)])
    await world.load("a")
    before = world.worker("a").pool_bytes
    await world.die("a")
    await world.open_until("start:a")
    load = await world.begin(world.residency.load("new"))
    await world.open("memory")
    assert world.worker("a").pool_bytes == before, "it was started with what was granted then"
    await world.open_all(but=("start:a",))
    assert not load.done(), "nobody may take the room that it does not know it has lost"
    assert [one.id for one in world.workers] == ["a"]
    await world.open_all()
    await load
    check(world)
    await check_rest(world)


@played
async def test_a_worker_that_comes_back_heavier_takes_from_the_shares_of_all() -> None:
    world = World([build("a", 4), build("b", 4)])
    await world.load("a", "b")
    heavier = build("a", 4, baseline_bytes=2 * GIB)
    world.files.builds["a"] = heavier
    await world.die("a")
    await world.pass_time(3)
    assert world.worker("b").pool_bytes == share(world, "b") == (28 * GIB - 10 * GIB - 11 * GIB // 2) // 2
    await check_rest(world)


@played
async def test_a_model_that_turns_out_too_heavy_for_the_others_shares_is_unloaded_again() -> None:
    """The chat needs what the newcomer's weights turn out to take beyond their padding."""
    world = World([build("a", 4), build("new", 4, loaded_bytes=7 * GIB)])
    await world.load("a")
    await world.chat("1", "a", needs_gib=6.8)
    await world.open_all()
    load = await world.begin(world.residency.load("new"))
    await world.open_all()
    assert await refusal(load) is Why.AFTER_LOAD
    assert world.resident == {"a"}
    await world.finish("1", "a")
    await check_rest(world)


@played
async def test_idle_models_make_room_for_one_that_turns_out_heavier_than_its_files() -> None:
    world = World([build("a", 3), build("b", 3), build("new", 8, loaded_bytes=17 * GIB)])
    await world.load("a", "b")
    await world.load("new")
    assert world.resident == {"b", "new"}, "the one that had been idle longest was enough"
    assert share(world, "b") > 0
    await check_rest(world)


@played
async def test_nobody_leaves_for_one_that_turns_out_too_heavy_even_for_the_empty_machine() -> None:
    world = World([build("a", 3), build("new", 8, loaded_bytes=24 * GIB)])
    await world.load("a")
    load = await world.begin(world.residency.load("new"))
    await world.open_all()
    assert await refusal(load) is Why.AFTER_LOAD
    assert world.resident == {"a"}
    await check_rest(world)


@played
async def test_a_stale_reading_is_not_decided_upon() -> None:
    world = World([build("a", 4)])
    load = await world.begin(world.residency.load("a"))
    old = world.memory()
    await world.loop.advance(3)
    for _ in range(3):
        await world.open("memory", result=old)
    await world.open_all()
    assert await refusal(load) is Why.UNREADABLE


@played
async def test_what_is_just_being_loaded_is_unloaded_as_soon_as_it_is_there() -> None:
    world = World([build("a", 4)])
    load = await world.begin(world.residency.load("a"))
    await world.open_until("start:a")
    unload = await world.begin(world.residency.unload("a"))
    await world.open_all()
    await asyncio.gather(load, unload)
    assert world.resident == set()
    await check_rest(world)


@played
async def test_ending_in_the_middle_of_a_load_leaves_no_worker() -> None:
    for gate in ("memory", "grant:a", "start:b", "clearcache:b"):
        world = World([build("a", 4), build("b", 4)])
        await world.load("a")
        load = await world.begin(world.residency.load("b"))
        await world.open_until(gate)
        await world.complete(world.residency.stop())
        assert world.workers == []
        assert load.cancelled()
        assert world.residency.occupancy.ledger.outstanding_bytes == 0


@played
async def test_what_was_desired_once_leaves_when_it_is_desired_no_more() -> None:
    world = World([build("own", 1), build("x", 1), build("y", 1)], named=["own"])
    for revision, names in ((1, ("x",)), (2, ("x", "y", "own")), (3, ("own",)), (4, ())):
        world.desire(revision, *names)
        await world.loop.settle()
        await world.open_all()
        assert set(world.residency.advertised_ids) == {"own", *names}
    world.desire(3, "x")
    await world.open_all()
    assert world.residency.advertised_ids == ["own"]


@played
async def test_a_model_that_is_desired_no_more_while_it_is_fetched_is_not_served() -> None:
    world = World([build("own", 1), build("x", 1)], named=["own"])
    world.desire(1, "x")
    await world.loop.settle()
    assert world.gates.names == ["fetch:x"]
    world.desire(2)
    await world.open_all()
    assert world.residency.advertised_ids == ["own"]
    assert world.operations.deferred == []


@played
async def test_a_model_that_is_desired_again_before_it_has_left_stays() -> None:
    world = World([build("own", 1), build("x", 1)], named=["own"])
    world.desire(1, "x")
    await world.open_all()
    await world.load("x")
    chat = await world.chat("1", "x")
    await world.open_all()
    world.desire(2)
    await world.loop.settle()
    assert await failure(await world.chat("2", "x")) == (503, "slot_state")
    world.desire(3, "x")
    await world.open_all()
    await world.finish("1", "x")
    assert await chat == "."
    await world.open_all()
    assert world.resident == {"x"}
    await check_rest(world)


@played
async def test_a_digest_that_is_none_is_refused_before_anything_is_fetched() -> None:
    world = World([build("own", 1), build("x", 2)], named=["own"])
    for digest in ("", "5A" * 32, "5a" * 31, "sha256:" + "5a" * 32):
        world.prefetch("x", digest=digest)
        await world.loop.settle()
    told = [(one.status, str(one.reason).partition(":")[0]) for one in world.said if isinstance(one, PrefetchStatus)]
    assert told == [("failed", "invalid_digest")] * 4
    assert world.residency.advertised_ids == ["own"]
    await check_rest(world)


@played
async def test_another_build_of_a_model_takes_its_place_once_the_first_has_left() -> None:
    world = World([build("own", 1), build("x", 2), build("x@2", 3, digest="b2" * 32)], named=["own"])
    world.prefetch("x")
    await world.loop.settle()
    await world.open_all()
    await world.load("x")
    chat = await world.chat("1", "x")
    await world.open_all()
    world.prefetch("x", "x@2", "b2" * 32)
    await world.loop.settle()
    await world.open_all()
    assert world.residency.advertised_ids == ["own"]
    await world.finish("1", "x")
    await world.open_all()
    assert await chat == "."
    assert world.residency.advertised_ids == ["own", "x"]
    await world.load("x")
    assert [one.build.name for one in world.workers] == ["x@2"]
    await check_rest(world)


@played
async def test_an_unload_that_is_ordered_waits_for_the_chats_and_takes_no_more() -> None:
    world = World([build("a", 4)])
    await world.load("a")
    chat = await world.chat("1", "a")
    await world.open_all()
    world.operations.handle(UnloadModel(model_id="a"), world.said.append)
    await world.loop.settle()
    assert world.resident == {"a"}
    assert await failure(await world.chat("2", "a")) == (503, "slot_state")
    await world.finish("1", "a")
    await world.open_all()
    assert (await chat, world.resident) == (".", set())


@played
async def test_what_is_idle_too_long_is_unloaded() -> None:
    world = World([build("a", 4)], idle_timeout_mins=1)
    await world.complete(world.residency.start())
    await world.load("a")
    await world.pass_time(50)
    assert world.resident == {"a"}
    await world.pass_time(15)
    assert world.resident == set()


@played
async def test_the_room_of_a_worker_that_is_being_replaced_is_not_there_for_others() -> None:
    """Others use 14 GiB: beside `a` and its successor, 4.8 + 6.5 GiB do not fit."""
    world = World([build("a", 6), build("new", 4)], others_gib=14)
    await world.load("a")
    await world.die("a")
    await world.open_until("start:a")
    world.worker("a").staged_bytes = 0
    load = await world.begin(world.residency.load("new"))
    await world.open_all(but=("start:a",))
    assert await refusal(load) is Why.IN_USE
    await world.open_all()
    assert world.resident == {"a"}


@played
async def test_a_busy_workers_step_is_not_taken_for_the_answer_that_its_cache_is_clear() -> None:
    world = World([build("a", 4), build("new", 10)], others_gib=5)
    await world.load("a")
    chat = await world.chat("1", "a", needs_gib=0.1)
    await world.open_all()
    world.worker("a").cache_bytes = 2 * GIB
    world.worker("a").think()
    load = await world.begin(world.residency.load("new"))  # 18.5 of 16.4, and 2.5 in the cache
    await world.open_until("clearcache:a")
    world.worker("a").think()
    await world.loop.settle()
    assert world.gates.names == ["clearcache:a"], "memory is measured once it has been cleared"
    await world.open_all()
    await load
    await world.finish("1", "a")
    assert (await chat, world.resident) == (".", {"a", "new"})


@pytest.mark.parametrize("error", [ModelError("its files are broken"), WorkerError("the worker ended")])
def test_a_model_that_cannot_be_loaded_at_start_does_not_take_the_others_with_it(error: Exception) -> None:
    async def script() -> None:
        world = World([build("a", 4), build("b", 4)], preload=("a", "b"))
        start = await world.begin(world.residency.start())
        await world.open_until("start:a")
        await world.open("start:a", result=error)
        await world.open_all()
        await start
        assert world.resident == {"b"}
        assert world.residency.last_load_error is not None
        assert world.residency.last_load_error.message == str(error)
        await world.load("a")
        assert world.resident == {"a", "b"}, "it is tried again when it is asked for"
        await check_rest(world)

    play(script)


@played
async def test_at_start_with_nothing_that_can_be_loaded_it_is_the_end() -> None:
    world = World([build("a", 4)], preload=("a",))
    start = await world.begin(world.residency.start())
    await world.open_until("start:a")
    await world.open("start:a", result=WorkerError("the worker ended"))
    await world.open_all()
    assert isinstance(start.exception(), WorkerError)
