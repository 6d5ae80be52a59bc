"""Who is told what of itself, and when."""

import asyncio
from dataclasses import replace

import pytest

from coordinator import fleet
from coordinator.config import Timings
from coordinator.details import detail
from coordinator.reasons import Reason
from coordinator.routability import Teller
from coordinator.routing import Request
from coordinator.views import Views
from provider.protocol import ModelsUpdate, Routability
from tests.fixtures.event_loop import others
from tests.unit.coordinator.views import GIB, MODEL, TABLES, advert, beat, memory, register, slot, view


class World:
    """The hub as far as this goes: views, and what each provider has heard."""

    def __init__(self) -> None:
        self.views = Views()
        self.heard: list[tuple[str, dict[str, tuple[bool, str | None]]]] = []
        self.details: dict[str, str | None] = {}
        self.now_s = 0.0
        self.teller = Teller(self, Timings(), lambda: TABLES, lambda: self.now_s)

    def tell(self, provider_id: str, order: Routability) -> bool:
        self.heard.append((provider_id, {model: (one.routable, one.reason) for model, one in order.models.items()}))
        self.details |= {model: one.detail for model, one in order.models.items()}
        return True

    def look(self) -> list[tuple[str, dict[str, tuple[bool, str | None]]]]:
        self.heard.clear()
        asyncio.run(self.teller.look())
        return list(self.heard)


@pytest.fixture
def world() -> World:
    return World()


WELL = {MODEL: (True, None)}


def test_each_is_told_once_and_again_when_it_changes(world: World) -> None:
    world.views["a"], world.views["b"] = view("a", slot()), view("b", slot(state="failed"))
    assert world.look() == [("a", WELL), ("b", {MODEL: (False, "slot_failed")})]
    assert world.look() == []
    world.views["b"] = fleet.beaten(world.views["b"], beat(2, slots=(slot(),)), 0.0)
    assert world.look() == [("b", WELL)]
    assert world.look() == []


def test_all_models_are_told_with_the_one_that_changed(world: World) -> None:
    both = {MODEL: advert(), "huge": advert("huge", size_bytes=9 * GIB)}
    world.views["a"] = view("a", slot(), models=both)
    assert world.look() == [("a", {**WELL, "huge": (False, "memory_cap")})]
    assert world.details["huge"] == "loading takes 10.8 GiB, 4.0 GiB are free for it"
    world.views["a"] = replace(world.views["a"], memory=memory(free_for_load_bytes=12 * GIB))
    assert world.look() == [("a", {**WELL, "huge": (True, None)})]


def test_what_changes_with_time_alone_is_told_too(world: World) -> None:
    world.views["a"] = view("a", slot())
    world.look()
    world.now_s = 15.0
    assert world.look() == [("a", {MODEL: (False, "provider_suspect")})]
    world.views["a"] = fleet.beaten(world.views["a"], beat(2, slots=(slot(),)), 15.0)
    assert world.look() == [("a", WELL)]


def test_a_change_that_is_gone_before_the_next_look_is_never_told(world: World) -> None:
    world.views["a"] = view("a", slot())
    world.look()
    world.views["a"] = fleet.full(world.views["a"], MODEL, until_s=0.5)
    world.now_s = 1.0
    assert world.look() == []


def test_one_that_is_away_is_told_when_it_is_back_though_nothing_else_has_changed(world: World) -> None:
    world.views["a"] = view("a", slot())
    world.look()
    world.views["a"] = fleet.disconnected(world.views["a"], 1.0)
    assert world.look() == []
    again = fleet.registered(register("a"), 2, 2.0, world.views["a"])
    world.views["a"] = fleet.beaten(again, beat(1, slots=(slot(),)), 2.0)
    assert world.look() == [("a", WELL)]


def test_a_model_that_is_new_is_told(world: World) -> None:
    world.views["a"] = view("a", slot())
    world.look()
    more = ModelsUpdate(models=[advert(), advert("other")])
    world.views["a"] = fleet.models_replaced(world.views["a"], more)
    assert world.look() == [("a", {**WELL, "other": (True, None)})]
    world.views["a"] = fleet.models_replaced(world.views["a"], ModelsUpdate(models=[]))
    assert world.look() == []


def test_others_that_come_and_go_do_not_mix_up_who_was_told_what(world: World) -> None:
    for name in "abc":
        world.views[name] = view(name, slot(), draining=name == "c")
    world.look()
    del world.views["a"]
    assert world.look() == []
    world.views["d"] = view("d", slot())
    assert world.look() == [("d", WELL)]
    world.views["c"] = replace(world.views["c"], draining=False)
    assert world.look() == [("c", WELL)]


def test_others_have_their_turns_while_thousands_of_models_are_looked_at(world: World) -> None:
    count = 1000
    world.views["a"] = view("a", models={f"m{one}": advert(f"m{one}") for one in range(count)})

    async def scene() -> int:
        async with others() as beside:
            began = beside.turns
            await world.teller.look()
            return beside.turns - began

    assert asyncio.run(scene()) > 10
    (told,) = world.heard
    assert len(told[1]) == count


def test_what_changes_while_it_is_looked_at_is_told_at_the_next_look(world: World) -> None:
    world.views["a"] = view("a", models={f"m{one}": advert(f"m{one}") for one in range(1000)})

    async def scene() -> None:
        looking = asyncio.create_task(world.teller.look())
        await asyncio.sleep(0.003)
        world.views["a"] = fleet.models_replaced(world.views["a"], ModelsUpdate(models=[advert("m999"), advert("new")]))
        await looking

    asyncio.run(scene())
    world.look()
    assert world.heard[-1:] == [] or set(world.heard[-1][1]) == {"m999", "new"}
    world.views["a"] = fleet.full(world.views["a"], "new", until_s=9.0)
    assert world.look() == [("a", {"m999": (True, None), "new": (False, "queue_full")})]


@pytest.mark.parametrize("reason", [None, *Reason])
def test_every_reason_has_words(reason: Reason | None) -> None:
    for seen in (view(), view("p1", slot()), view("p1", slot(state="loading"), memory=None), view(memory=None)):
        assert detail(reason, Request(MODEL, 10), seen, 0.0, TABLES)


@pytest.mark.parametrize(
    ("exact", "words"), [("unavailable", "exact mode is on there"), ("off", "its worker keeps ending")]
)
def test_a_model_that_exact_mode_refuses_is_told_from_one_whose_worker_keeps_ending(exact: str, words: str) -> None:
    seen = view("p1", slot(state="failed"), models={MODEL: advert(exact=exact)})
    assert detail(Reason.SLOT_FAILED, Request(MODEL, 10), seen, 0.0, TABLES).startswith(words)
