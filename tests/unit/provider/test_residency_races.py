"""The races of docs/memory.md, one deterministic interleaving each.

`python -m tools.mutate_races` removes every rule in turn and demands that its test fails.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from provider.backends.base import BackendFacts
from provider.backends.sim import SimBackend
from provider.engine import Engine
from provider.errors import ModelError, RequestFailed, SelfTestFailed
from provider.fitness import Candidate, MachineFacts, judge_fit
from provider.loading import LoadRefused
from provider.memory.admission import max_loadable_weight
from provider.memory.caps import GIB
from provider.memory.floors import DEFAULT_FLOOR_BYTES
from provider.memory.refusal import Why
from provider.memory.requirement import Charge, padded_weights
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from tests.unit.provider.residency_world.builds import build
from tests.unit.provider.residency_world.connection import Linked
from tests.unit.provider.residency_world.virtual_loop import play
from tests.unit.provider.residency_world.world import World

HIGH = DEFAULT_FLOOR_BYTES
LOW = GIB
Script = Callable[[], Coroutine[Any, Any, None]]


def played(script: Script) -> Callable[[], None]:
    """A test that is a coroutine of the world's own loop."""

    def test() -> None:
        play(script)

    test.__name__ = script.__name__
    return test


def share(world: World, id: str) -> int:
    """What the pure function gives it now."""
    occupancy = world.residency.occupancy
    shares = occupancy.shares(occupancy.reserve())
    assert shares is not None
    return shares[id]


def committed(world: World) -> int:
    """What the workers may take, and the reserve of the serving set beside it."""
    return sum(one.build.weight_bytes + one.pool_bytes for one in world.workers) + world.residency.occupancy.reserve()


async def failure(task: "asyncio.Task[Any]") -> tuple[int, str]:
    with pytest.raises(RequestFailed) as caught:
        await task
    return caught.value.failure.status, caught.value.failure.code


async def refusal(task: "asyncio.Task[Any]") -> Why:
    with pytest.raises(LoadRefused) as caught:
        await task
    return caught.value.refusal.why


def prefetch_statuses(world: World, id: str) -> list[str]:
    return [one.status for one in world.said if one.type == "prefetch_status" and one.model_id == id]  # type: ignore[attr-defined]


@played
async def test_race_01_a_model_dropped_while_it_loads_still_pins_its_floor() -> None:
    world = World([build("low", 4), build("high", 8)], floors={"low": 1})
    await world.load("low")
    before = world.worker("low").pool_bytes
    load = await world.begin(world.residency.load("high"))
    await world.open_until("start:high")
    world.residency.withdraw(["high"])
    await world.open_all(but=("start",))

    assert world.residency.occupancy.reserve() == HIGH
    assert world.worker("low").reserve_bytes == HIGH
    assert world.worker("low").pool_bytes < before

    await world.open_all()
    assert await failure(load) == (503, "slot_state")
    assert world.resident == {"low"}
    assert world.worker("low").reserve_bytes == LOW
    assert world.worker("low").pool_bytes == share(world, "low") == 28 * GIB - 4 * GIB - LOW


def test_race_02_a_relax_that_comes_after_a_later_raise_changes_nothing() -> None:
    pool = Pool(tokens=500, bytes=1000, kv_bytes_per_token=2, tokens_follow_bytes=True)
    facts = BackendFacts("sim", 64, 512, 1000, 2, 0, 16)
    engine = Engine(Scheduler(Limits(8, 512), pool), SimBackend(facts), lambda ids, special: "")

    assert engine.grant(3, 400)
    engine.grant(2, 900)

    assert engine.scheduler.pool.bytes == 400


@pytest.mark.parametrize("path", ["unload", "failed load", "withdrawn", "retired", "given up", "evicted"])
def test_race_03_every_way_out_gives_the_survivors_its_room(path: str) -> None:
    async def script() -> None:
        world = World([build("stays", 4), build("goes", 4), build("comes", 12)], floors=dict.fromkeys(("stays",), 1.0))
        await world.load("stays", "goes") if path != "failed load" else await world.load("stays")
        before = world.worker("stays").pool_bytes
        match path:
            case "unload":
                await world.complete(world.residency.unload("goes"))
            case "failed load":
                load = await world.begin(world.residency.load("goes"))
                await world.open_until("start")
                await world.open("start", result=ModelError("broken"))
                await world.open_all()
                with pytest.raises(ModelError):
                    await load
            case "withdrawn":
                world.residency.withdraw(["goes", "comes"])
            case "retired":
                world.residency.retire(world.model("goes"))
            case "given up":
                for _ in range(4):
                    await world.die("goes")
                    await world.open_all()
                    await world.loop.advance(5)
                    await world.open_all()
            case "evicted":
                world.model("stays").pinned = True
                await world.load("comes")
        await world.open_all()
        assert "goes" not in world.resident
        assert world.worker("stays").pool_bytes == share(world, "stays")
        if path != "evicted":
            assert world.worker("stays").pool_bytes >= before
        assert world.residency.granting.settled

    play(script)


@played
async def test_race_04_the_next_load_begins_when_the_failed_one_has_been_cleaned_up() -> None:
    world = World([build("one", 4), build("two", 4)])
    await world.load("two")
    first = await world.begin(world.residency.load("one"))
    await world.open_until("start:one")
    await world.open("start:one", result=ModelError("broken"))
    second = await world.begin(world.residency.load("one"))
    third = await world.chat("1", "one")
    await world.open_all(but=("clearcache",))

    assert not world.gates.names or world.gates.names == ["clearcache:two"]
    assert not any(one.id == "one" for one in world.workers)

    await world.open_all()
    for task in (first, second):
        with pytest.raises(ModelError):
            await task
    assert await failure(third) == (503, "slot_state")
    await world.load("one")
    occupancy = world.residency.occupancy
    assert (occupancy.ledger.outstanding_bytes, occupancy.loading) == (0, set())
    assert world.worker("one").pool_bytes == occupancy.granted["one"] == share(world, "one")


@played
async def test_race_05_memory_is_sampled_first_and_the_requirement_worked_out_then() -> None:
    """10 GiB fit with its own floor, and not with the one of a model that leaves while memory is read."""
    world = World([build("a", 10), build("high", 4)], floors={"a": 1}, others_gib=12)
    load = await world.begin(world.residency.load("a"))
    assert world.gates.names == ["memory"]
    world.residency.withdraw(["high"])
    await world.open_all()
    await load
    assert world.resident == {"a"}


@played
async def test_race_05_a_model_withdrawn_while_memory_is_read_evicts_nobody() -> None:
    world = World([build("a", 10), build("b", 10)], others_gib=8)
    await world.load("b")
    load = await world.begin(world.residency.load("a"))
    world.residency.withdraw(["a"])
    await world.open_all()
    assert await failure(load) == (404, "model_not_found")
    assert world.resident == {"b"}


@played
async def test_race_06_a_loads_own_claim_is_not_held_against_it() -> None:
    """20 GiB are usable: enough for 12 + 5.5 + 1 once, and not for 12 more."""
    world = World([build("a", 10)], others_gib=8)
    await world.load("a")
    assert world.resident == {"a"}


@played
async def test_race_07_requirement_and_claim_hold_the_assistant_alike() -> None:
    charge = Charge(10 * GIB, GIB)
    for others_gib, expected in ((8.0, charge), (9.0, charge.target_only)):  # 18.5 + 1.2 of 20, and of 19
        world = World([build("a", 10)], others_gib=others_gib)
        world.model("a").charge = charge
        load = await world.begin(world.residency.load("a"))
        await world.open_until("start:a")
        assert world.residency.occupancy.ledger.outstanding_bytes == expected.padded_bytes
        drafts = world.worker("a").spec.drafts
        assert drafts is not None
        assert drafts.room == (expected == charge)
        await world.open_all()
        await load
        assert world.residency.occupancy.ledger.outstanding_bytes == 0


@played
async def test_race_07_an_assistant_whose_room_is_taken_before_allocation_is_refused() -> None:
    world = World([build("a", 10)], others_gib=8)
    world.model("a").charge = Charge(10 * GIB, GIB)
    load = await world.begin(world.residency.load("a"))
    await world.open("memory")
    world.others_bytes += GIB
    await world.open_all()
    assert await refusal(load) is Why.IN_USE


@played
async def test_race_08_a_raise_waits_for_a_load_that_lies_between_admission_and_install() -> None:
    """14 GiB leave 1 GiB of a cap of 20 beside a floor of 1 GiB, and none beside one of 5.5."""
    world = World([build("a", 14), build("high", 1)], named=["a"], physical_gib=24, floors={"a": 1})
    load = await world.begin(world.residency.load("a"))
    await world.open_until("start:a")
    world.prefetch("high")
    await world.loop.settle()
    await world.open_all(but=("start",))
    assert world.residency.advertised_ids == ["a"]

    await world.open_all()
    await load
    assert world.residency.advertised_ids == ["a"]
    assert prefetch_statuses(world, "high")[-1] == "deferred"
    assert world.worker("a").pool_bytes == share(world, "a") == 5 * GIB


@played
async def test_race_09_a_raise_that_strands_a_resident_is_refused_and_what_was_fetched_is_said() -> None:
    world = World([build("a", 14), build("high", 1)], named=["a"], physical_gib=24, floors={"a": 1})
    await world.load("a")
    world.prefetch("high", digest="5a" * 32)
    await world.loop.settle()
    await world.open_all()

    assert prefetch_statuses(world, "high") == ["started", "downloading", "verified", "deferred"]
    assert world.residency.advertised_ids == ["a"]
    assert (world.worker("a").pool_bytes, world.worker("a").reserve_bytes) == (5 * GIB, LOW)
    assert world.residency.occupancy.joining == set()


@played
async def test_race_10_what_was_deferred_is_offered_again_when_room_comes() -> None:
    world = World([build("a", 14), build("high", 1)], named=["a"], physical_gib=24, floors={"a": 1})
    await world.load("a")
    world.prefetch("high")
    await world.loop.settle()
    await world.open_all()
    now = world.loop.time()
    await world.complete(world.residency.unload("a"))

    assert world.residency.advertised_ids == ["a", "high"]
    assert world.loop.time() == now


@played
async def test_race_10_room_that_comes_while_an_attempt_is_under_way_is_not_missed() -> None:
    """The chat has what the raise asks for until just after the worker has refused."""
    world = World([build("a", 8), build("high", 1)], named=["a"], physical_gib=24, floors={"a": 1})
    await world.load("a")
    chat = await world.chat("1", "a", needs_gib=9)
    await world.open_all()
    world.prefetch("high")
    await world.loop.settle()
    await world.open_until("grant:a")
    unload = await world.begin(world.residency.unload("a"))
    await world.finish("1", "a")
    await world.open_all()
    await asyncio.gather(chat, unload)
    assert world.residency.advertised_ids == ["a", "high"]


@played
async def test_race_10_a_chat_that_stood_in_the_way_ends_without_a_word() -> None:
    world = World([build("a", 8), build("high", 1)], named=["a"], physical_gib=24, floors={"a": 1})
    await world.load("a")
    await world.chat("1", "a", needs_gib=9)
    await world.open_all()
    world.prefetch("high")
    await world.loop.settle()
    await world.open_all()
    assert prefetch_statuses(world, "high")[-1] == "deferred"
    await world.finish("1", "a")
    await world.pass_time(60)
    assert world.residency.advertised_ids == ["a", "high"]
    assert world.worker("a").pool_bytes == share(world, "a")


@played
async def test_race_11_a_picture_taken_across_a_move_is_taken_again() -> None:
    world = World([build("a", 4), build("b", 4)])
    await world.load("a", "b")
    picture = await world.begin(world.residency.capacity())
    old = world.memory()
    unload = await world.begin(world.residency.unload("b"))
    await world.open_all(but=("memory",))
    await unload
    await world.open("memory", result=old)
    await world.open_all()

    occupancy = world.residency.occupancy
    truth = max_loadable_weight(occupancy.reading(world.memory()), occupancy.reserve() + GIB)
    assert (await picture).memory.free_for_load_bytes == truth


@played
async def test_race_11_a_picture_is_published_however_often_the_grants_move() -> None:
    world = World([build("a", 4)])
    picture = await world.begin(world.residency.capacity())
    for _ in range(3):
        await world.residency.granting.regrow()
        await world.open("memory")
    assert (await picture).memory.physical_bytes == 32 * GIB


async def retired_while_another_prefetch_sleeps(at: str) -> World:
    """`m` fails its self-test in its load while a second prefetch of the same build waits at `at`."""
    world = World([build("m", 4), build("a", 1)], named=["a"])
    world.prefetch("m", digest="5a" * 32)
    await world.loop.settle()
    await world.open_all()
    assert world.residency.advertised_ids == ["a", "m"]
    load = await world.begin(world.residency.load("m"))
    await world.open_until("start:m")
    world.said.clear()
    world.prefetch("m", digest="5a" * 32)
    await world.loop.settle()
    await world.open_all(but=("start", at))
    await world.open("start:m", result=SelfTestFailed("nonsense"))
    await world.open_all(but=(at,))
    with pytest.raises(SelfTestFailed):
        await load
    assert world.residency.advertised_ids == ["a"]
    await world.open_all()
    return world


@pytest.mark.parametrize("at", ["fetch", "digest", "the gate"])
def test_race_12_a_prefetch_that_slept_through_a_retirement_does_not_bring_the_build_back(at: str) -> None:
    async def script() -> None:
        world = await retired_while_another_prefetch_sleeps(at)
        assert world.residency.advertised_ids == ["a"]
        if at != "the gate":
            assert prefetch_statuses(world, "m")[-1] == "failed"
        world.prefetch("m", digest="5a" * 32)
        await world.loop.settle()
        await world.open_all()
        assert world.residency.advertised_ids == ["a"]
        assert await failure(await world.chat("1", "m")) == (503, "slot_state")

    play(script)


@played
async def test_race_12_where_no_digest_is_known_every_build_of_the_model_is_refused() -> None:
    world = World([build("m", 4), build("m@2", 4, digest="07" * 32)], named=["m"])
    world.residency.retire(world.model("m"))
    for source, digest in (("m@2", "07" * 32), ("m@2", None)):
        world.prefetch("m", source, digest)
        await world.loop.settle()
        await world.open_all()
    assert world.residency.advertised_ids == []


@played
async def test_race_12_another_build_may_take_the_place_of_one_that_failed() -> None:
    world = World([build("m", 4), build("m@2", 5, digest="07" * 32)], named=["m"])
    world.model("m").digest = "5a" * 32
    world.residency.retire(world.model("m"))
    world.prefetch("m", "m@2", "07" * 32)
    await world.loop.settle()
    await world.open_all()
    assert world.residency.advertised_ids == ["m"]
    await world.load("m")
    assert world.worker("m@2").build.size_bytes == 5 * GIB


@played
async def test_race_13_what_changes_while_a_registration_is_on_its_way_is_told_after_it() -> None:
    world = World([build("a", 1), build("b", 1)])
    linked = Linked(world)
    linked.socket.hold = "register"
    await linked.begin()
    await world.open_until("send:register")
    world.residency.withdraw(["b"])
    await world.open_all()
    await linked.welcome()

    [register] = linked.socket.of("register")
    told = [one["id"] for one in (linked.socket.of("models_update") or [register])[-1]["models"]]
    assert told == world.residency.advertised_ids == ["a"]


@played
async def test_race_14_a_retirement_is_announced_and_nobody_elses_work_is_lost() -> None:
    world = World([build("bad", 1), build("good", 1)])
    await world.load("good")
    linked = Linked(world)
    await linked.begin()
    await linked.welcome()
    await linked.ask("j.1", "good")
    await world.open_all()
    load = await world.begin(world.residency.load("bad"))
    await world.open_until("start:bad")
    await world.open("start:bad", result=SelfTestFailed("nonsense"))
    await world.open_all()
    with pytest.raises(SelfTestFailed):
        await load

    assert [[one["id"] for one in update["models"]] for update in linked.socket.of("models_update")] == [["good"]]
    assert not linked.running.done()
    await world.finish("j.1", "good")
    assert [one["request_id"] for one in linked.socket.of("inference_complete")] == ["j.1"]
    assert len(linked.socket.of("register")) == 1


@played
async def test_race_15_a_model_that_retires_while_a_request_is_looked_at_takes_no_more() -> None:
    world = World([build("m", 4)])
    looked_at = await world.begin(world.residency.pre_accept("m"))
    assert world.gates.names == ["memory"]
    world.residency.retire(world.model("m"))
    await world.open_all()
    assert await failure(looked_at) == (503, "slot_state")


@played
async def test_race_15_a_model_that_retires_while_a_request_waits_for_it_takes_no_more() -> None:
    world = World([build("m", 4)])
    chat = await world.chat("1", "m")
    await world.open_until("start:m")
    await world.open("start:m", result=SelfTestFailed("nonsense"))
    await world.open_all()
    assert await failure(chat) == (503, "slot_state")
    assert await failure(await world.chat("2", "m")) == (503, "slot_state")


@played
async def test_race_15_requests_enter_a_model_only_once_its_load_has_ended() -> None:
    """Its last check is still to come: what is too little for chats is unloaded again."""
    world = World([build("m", 4)])
    load = await world.begin(world.residency.load("m"))
    await world.open_until("clearcache:m")
    chat = await world.chat("1", "m")
    assert world.worker("m").chats == {}
    world.others_bytes = 30 * GIB
    await world.open_all()
    assert await refusal(load) is Why.AFTER_LOAD
    assert await failure(chat) == (503, "memory_cap")


@played
async def test_race_16_what_is_loaded_at_start_is_judged_by_what_there_is_then() -> None:
    world = World([build("a", 4), build("b", 4)], preload=("a", "b"))
    starting = await world.begin(world.residency.start())
    await world.open_until("start:a")
    world.others_bytes = 16 * GIB
    await world.open_all()
    await starting
    assert world.resident == {"a"}


@played
async def test_race_17_a_change_of_the_list_waits_for_the_load_that_is_under_way() -> None:
    """The survivor has given room up for the newcomer: nobody may hand it back before the newcomer is in."""
    world = World([build("a", 4), build("b", 4), build("high", 4)], floors={"a": 1, "b": 1})
    await world.load("a")
    load = await world.begin(world.residency.load("b"))
    await world.open_until("start:b")
    world.residency.withdraw(["high"])
    await world.open_all(but=("start",))
    assert committed(world) <= 28 * GIB

    await world.open_all()
    await load
    assert committed(world) == 28 * GIB
    assert {one.id: one.pool_bytes for one in world.workers} == {id: share(world, id) for id in ("a", "b")}


@played
async def test_race_17_a_failed_load_leaves_the_shares_of_the_list_as_it_is_then() -> None:
    world = World([build("a", 4), build("b", 4), build("high", 4)], floors={"a": 1, "b": 1})
    await world.load("a")
    load = await world.begin(world.residency.load("b"))
    await world.open_until("start:b")
    world.residency.withdraw(["high"])
    await world.open("start:b", result=ModelError("broken"))
    await world.open_all()
    with pytest.raises(ModelError):
        await load
    assert (world.worker("a").pool_bytes, world.worker("a").reserve_bytes) == (23 * GIB, LOW)


@played
async def test_race_18_everybody_charges_the_one_resolved_reserve() -> None:
    """12.1e9 bytes with a floor of 3.5 GiB on 24 GiB: 18.02 of 20; with the flat 5.5 it never fits."""
    gpt, floors = build("gpt-oss-20b", 12.1e9 / GIB), {"gpt-oss-20b": 3.5}
    reserve = 7 * GIB // 2
    world = World([gpt], physical_gib=24, floors=floors)
    facts = MachineFacts(
        physical_bytes=24 * GIB,
        available_bytes=24 * GIB,
        reserve_bytes=4 * GIB,
        advertised=(gpt.name,),
        models=(Candidate(id=gpt.name, size_bytes=gpt.size_bytes),),
        target=gpt.name,
        floors={gpt.name: reserve},
    )
    assert judge_fit(facts).activation_reserve_bytes == reserve
    capacity = (await world.complete(world.residency.capacity())).memory
    assert capacity.activation_reserve_bytes == reserve
    assert capacity.free_for_load_bytes == 20 * GIB - reserve - GIB
    await world.load(gpt.name)
    worker = world.worker(gpt.name)
    assert worker.reserve_bytes == reserve
    assert worker.pool_bytes == 20 * GIB - gpt.size_bytes - reserve


@played
async def test_race_18_a_worker_starts_with_the_reserve_it_will_be_granted() -> None:
    world = World([build("a", 4)], floors={"a": 1})
    load = await world.begin(world.residency.load("a"))
    await world.open_until("start:a")
    assert world.worker("a").reserve_bytes == LOW
    assert world.worker("a").pool_bytes == 28 * GIB - padded_weights(4 * GIB) - LOW
    await world.open_all()
    await load


@played
async def test_race_19_a_load_without_its_assistant_is_measured_with_the_same_reserve() -> None:
    """14 GiB leave 6 of a cap of 20: enough beside a floor of 1 GiB, too little beside 5.5."""
    world = World([build("a", 14)], physical_gib=24, floors={"a": 1})
    world.model("a").charge = Charge(14 * GIB, 4 * GIB)
    await world.load("a")
    assert world.resident == {"a"}
    assert world.worker("a").pool_bytes == 5 * GIB


@played
async def test_race_20_nothing_advertised_is_a_statement_and_not_the_want_of_one() -> None:
    world = World([build("a", 4)], floors={"a": 1})
    await world.load("a")
    occupancy = world.residency.occupancy
    assert occupancy.reserve(["a"]) == LOW
    world.residency.withdraw(["a"])
    assert (occupancy.advertised, occupancy.reserve(["a"])) == ([], HIGH)
    occupancy.advertised = None
    assert occupancy.reserve(["a"]) == LOW
    for advertised, reserve in (((), HIGH), (None, LOW), (("a",), LOW)):
        facts = MachineFacts(
            physical_bytes=32 * GIB,
            available_bytes=32 * GIB,
            reserve_bytes=4 * GIB,
            advertised=advertised,
            models=(Candidate(id="a", size_bytes=GIB),),
            target="a",
            floors={"a": LOW},
        )
        assert judge_fit(facts).activation_reserve_bytes == reserve


@played
async def test_race_21_a_reserve_that_falls_is_told_at_once() -> None:
    """However long the load lasts that stands before the survivors' regrow, and with no beat due."""
    world = World([build("a", 4), build("b", 4), build("high", 4)], floors={"a": 1, "b": 1})
    await world.load("a")
    linked = Linked(world)
    await linked.begin()
    await linked.welcome()
    load = await world.begin(world.residency.load("b"))
    await world.open_until("start:b")
    picture = await world.begin(world.residency.capacity())
    await world.open_all(but=("start",))
    before = (await picture).memory
    world.residency.withdraw(["high"])
    await world.open_all(but=("start",))
    [*_, after] = linked.socket.of("heartbeat")

    assert before.activation_reserve_bytes == HIGH
    assert after["memory"]["activation_reserve_bytes"] == LOW
    assert after["memory"]["free_for_load_bytes"] == before.free_for_load_bytes + HIGH - LOW
    await world.open_all()
    await load


@played
async def test_race_21_what_an_unload_gives_back_is_told_at_once() -> None:
    world = World([build("a", 4), build("b", 4)])
    await world.load("a", "b")
    linked = Linked(world)
    await linked.begin()
    await linked.welcome()
    await world.complete(world.residency.unload("b"))
    [*_, last] = linked.socket.of("heartbeat")
    assert [one["model"] for one in last["slots"]] == ["a"]
    capacity = (await world.complete(world.residency.capacity())).memory
    assert last["memory"] == capacity.model_dump()
