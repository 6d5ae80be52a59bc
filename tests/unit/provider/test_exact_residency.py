"""Exact concurrency on its way to each model's load, and what a provider says of it."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from provider.config import EngineSection
from provider.errors import ExactUnavailable, RequestFailed
from provider.exact_status import overall, settings_object
from provider.protocol import LoadModel, LoadModelStatus
from provider.status import Status
from tests.unit.provider.residency_world.builds import build
from tests.unit.provider.residency_world.connection import Linked
from tests.unit.provider.residency_world.invariants import check_rest
from tests.unit.provider.residency_world.virtual_loop import play
from tests.unit.provider.residency_world.world import World
from tests.unit.provider.test_residency_races import failure

REFUSED = ExactUnavailable(
    "m: exact mode is on, and cannot be guaranteed: experts are sorted: serve it with exact off.",
    "experts_sorted",
    "--exact off",
)


def played(script: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test that is a coroutine of the world's own loop, with a data directory."""

    def test(tmp_path: Path) -> None:
        play(lambda: script(tmp_path))

    test.__name__ = script.__name__
    return test


def world_of(tmp_path: Path, *names: str) -> World:
    return World([build(name, 4) for name in names], data_dir=tmp_path)


def ads(world: World) -> dict[str, str]:
    return {one.id: one.exact for one in world.residency.advertised()}


async def slots(world: World) -> dict[str, str]:
    """As a heartbeat tells of them."""
    capacity = await world.complete(world.residency.capacity())
    return {one.model: one.state for one in capacity.slots}


def told(world: World) -> dict[str, Any]:
    return settings_object(world.residency.served, world.residency.exact)


@played
async def test_a_mode_counts_from_the_next_load_on(tmp_path: Path) -> None:
    world = world_of(tmp_path, "a", "b")
    await world.load("a")
    changes = world.changes
    world.residency.want_exact("auto")
    assert world.changes == changes + 1
    assert (told(world)["wanted"], told(world)["actual"]) == ("auto", "off")
    assert told(world)["reason"] == "it was loaded with exact off, and auto counts from the next load on"
    await world.load("b")
    assert ads(world) == {"a": "off", "b": "on"}
    assert [(one["id"], one["mode"], one["state"], one["lane_rows"]) for one in told(world)["models"]] == [
        ("a", "off", "off", None),
        ("b", "auto", "on", 4),
    ]
    assert told(world)["actual"] == "off"
    unload = await world.begin(world.residency.unload("a"))
    await world.open_all()
    await unload
    await world.load("a")
    assert ads(world) == {"a": "on", "b": "on"}
    assert overall(world.residency.served, world.residency.exact) == ("on", None)
    await check_rest(world)


@played
async def test_a_coordinator_is_told_when_a_model_has_become_exact(tmp_path: Path) -> None:
    world = world_of(tmp_path, "a")
    world.residency.want_exact("auto")
    linked = Linked(world)
    await linked.begin()
    await linked.welcome()
    await world.load("a")
    [register] = linked.socket.of("register")
    [update] = linked.socket.of("models_update")
    assert [one["models"][0]["exact"] for one in (register, update)] == ["off", "on"]


@played
async def test_one_that_dies_is_replaced_in_the_mode_it_was_loaded_with(tmp_path: Path) -> None:
    world = world_of(tmp_path, "a")
    world.residency.want_exact("on")
    await world.load("a")
    world.residency.want_exact("off")
    world.worker("a").die()
    await world.loop.settle()
    await world.open_all()
    assert world.worker("a").spec.exact == "on"
    assert ads(world) == {"a": "on"}


@played
async def test_before_its_first_load_a_model_promises_only_what_it_would_be_refused_for(tmp_path: Path) -> None:
    world = world_of(tmp_path, "a")
    for mode, ad in (("off", "off"), ("auto", "off"), ("on", "on")):
        world.residency.want_exact(mode)  # type: ignore[arg-type]  # of the literals above
        assert ads(world) == {"a": ad}
        assert told(world)["actual"] == "off"


@played
async def test_what_cannot_be_exact_is_refused_by_name_and_not_tried_again_for_each_request(tmp_path: Path) -> None:
    world = world_of(tmp_path, "m")
    world.residency.want_exact("on")
    chat = await world.chat("1", "m")
    await world.open_until("start:m")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    assert await failure(chat) == (503, "exact_unavailable")
    assert ads(world) == {"m": "unavailable"}
    assert await slots(world) == {"m": "failed"}, "nothing is sent here that would be refused"
    assert overall(world.residency.served, world.residency.exact) == ("unavailable", str(REFUSED))
    [shown] = Status(world.residency).props()["models"]
    assert (shown["state"], shown["reason"]) == ("failed", str(REFUSED))
    assert Status(world.residency).health() == "starting", "a refusal is no stall"
    again = await world.chat("2", "m")
    refused = (await _raised(again)).failure
    assert (refused.status, refused.code) == (503, "exact_unavailable"), "at once, with nothing loaded"
    assert (refused.retryable, refused.headers()) == (True, {"Retry-After": "60"})
    assert refused.detail == {"reason": "experts_sorted", "remedy": "--exact off"}
    [props] = told(world)["models"]
    assert (props["mode"], props["state"]) == ("on", "unavailable")
    assert (props["code"], props["remedy"]) == ("experts_sorted", "--exact off")
    assert world.gates.names == []
    looked_at = await world.begin(world.residency.pre_accept("m"))
    assert await failure(looked_at) == (503, "exact_unavailable")
    world.residency.want_exact("on")
    assert ads(world) == {"m": "unavailable"}, "nothing has changed"
    world.residency.want_exact("auto")
    assert (ads(world), await slots(world)) == ({"m": "off"}, {})
    await world.load("m")
    assert (ads(world), await slots(world)) == ({"m": "on"}, {"m": "idle"})
    await check_rest(world)


@played
async def test_an_operators_load_takes_a_refusal_back(tmp_path: Path) -> None:
    world = world_of(tmp_path, "m")
    world.residency.want_exact("on")
    for ends, state in ((REFUSED, "failed"), (None, "idle")):
        load = await world.begin(world.residency.load("m"))
        await world.open_until("start:m")
        await world.open("start:m", result=ends)
        await world.open_all()
        assert load.exception() is ends
        assert await slots(world) == {"m": state}
    assert ads(world) == {"m": "on"}


@played
async def test_a_coordinator_is_told_at_once_of_what_would_be_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, "m", "n")
    world.residency.want_exact("on")
    linked = Linked(world)
    await linked.begin()
    await linked.welcome()
    load = await world.begin(world.residency.load("m"))
    await world.open_until("start:m")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    assert load.exception() is REFUSED
    [beat] = linked.socket.of("heartbeat")[-1:]
    assert [(one["model"], one["state"]) for one in beat["slots"]] == [("m", "failed")]
    [update] = linked.socket.of("models_update")
    assert [one["exact"] for one in update["models"]] == ["unavailable", "on"]


@played
async def test_what_a_backend_can_never_do_is_told_before_anybody_asks_for_it(tmp_path: Path) -> None:
    world = World([build("m", 4), build("n", 4)], named=("m",), data_dir=tmp_path, backend="sim")
    assert await slots(world) == {}
    world.residency.want_exact("on")
    assert (ads(world), await slots(world)) == ({"m": "unavailable"}, {"m": "failed"})
    [props] = told(world)["models"]
    assert (props["mode"], props["code"]) == ("on", "backend_unsupported")
    world.desire(1, "n")
    await world.open_all()
    assert await slots(world) == {"m": "failed", "n": "failed"}, "one that comes later too"
    world.residency.want_exact("auto")
    assert (ads(world), await slots(world)) == ({"m": "off", "n": "off"}, {})
    await world.load("m")
    world.residency.want_exact("on")
    assert await slots(world) == {"m": "idle", "n": "failed"}, "what was loaded before goes on"
    unload = await world.begin(world.residency.unload("m"))
    await world.open_all()
    await unload
    assert await slots(world) == {"m": "failed", "n": "failed"}


@played
async def test_the_refusal_of_a_load_is_retryable_elsewhere_and_tells_the_whole_reason(tmp_path: Path) -> None:
    world = world_of(tmp_path, "m")
    world.residency.want_exact("on")
    world.operations.handle(LoadModel(model_id="m"), world.said.append)
    await world.loop.settle()
    await world.open_until("start:m")
    chat = await world.chat("1", "m")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    said = [one for one in world.said if isinstance(one, LoadModelStatus)]
    assert [(one.status, one.reason) for one in said] == [
        ("started", None),
        ("failed", f"exact_unavailable: {REFUSED}"),
    ]
    error = await _raised(chat)
    assert (error.failure.retryable, error.failure.message) == (True, str(REFUSED))


@played
async def test_a_mode_that_changes_during_a_load_leaves_no_refusal_behind(tmp_path: Path) -> None:
    world = world_of(tmp_path, "m")
    world.residency.want_exact("on")
    load = await world.begin(world.residency.load("m"))
    await world.open_until("start:m")
    world.residency.want_exact("off")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    assert isinstance(load.exception(), ExactUnavailable)
    await world.load("m")
    assert ads(world) == {"m": "off"}


@played
async def test_at_start_one_that_cannot_be_exact_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    world = World([build("m", 4), build("n", 4)], data_dir=tmp_path, preload=("m", "n"))
    world.residency.want_exact("on")
    start = await world.begin(world.residency.start())
    await world.open_until("start:m")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    await start
    assert ads(world) == {"m": "unavailable", "n": "on"}
    props = Status(world.residency).props()
    assert (props["exact_concurrency"], props["exact_concurrency_reason"]) == ("unavailable", str(REFUSED))


@played
async def test_at_start_with_nothing_else_to_serve_it_is_the_end(tmp_path: Path) -> None:
    world = World([build("m", 4)], data_dir=tmp_path, preload=("m",))
    world.residency.want_exact("on")
    start = await world.begin(world.residency.start())
    await world.open_until("start:m")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    assert start.exception() is REFUSED


@played
async def test_a_stored_setting_that_a_flag_overrides_leaves_a_refusal_as_it_is(tmp_path: Path) -> None:
    world = World([build("m", 4)], data_dir=tmp_path, exact_told_by="--exact", engine=EngineSection(exact="on"))
    load = await world.begin(world.residency.load("m"))
    await world.open_until("start:m")
    await world.open("start:m", result=REFUSED)
    await world.open_all()
    assert load.exception() is REFUSED
    world.residency.want_exact("off")
    assert (told(world)["mode"], told(world)["wanted"], told(world)["actual"]) == ("off", "on", "unavailable")


async def _raised(task: Any) -> RequestFailed:
    try:
        await task
    except RequestFailed as error:
        return error
    raise AssertionError("it was not refused")
