"""Where models are kept warm: decisions over a simulated fleet, and a clock that the test turns."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import pytest

from coordinator import fleet
from coordinator.attempts import Kind, State
from coordinator.config import Pace, Timings
from coordinator.fleet import ProviderView
from coordinator.mirror import ColdLoad, cold_load
from coordinator.placement import History, Order, Placement, matches, place
from coordinator.store.records import Desired, Pool
from coordinator.suitability import Blocked, Cost, judge
from provider.memory.requirement import padded_weights
from provider.protocol import DesiredModel, Heartbeat, LoadModelStatus, ModelAd, PrefetchStatus, Register, Slot
from tests.soak import examples
from tests.unit.coordinator.views import GIB, TABLES, advert, beat, memory, register, slot, view

PACE = Pace(start_s=0, settle_s=0)
TIMINGS = Timings()


def wanted(model: str = "demo", **pools: int) -> Desired:
    """`mac=2`: two of the providers whose names begin with mac; `all` is everybody."""
    told = tuple(Pool("*" if name == "all" else f"{name}*", number) for name, number in pools.items())
    return Desired(DesiredModel(id=model, source="s"), told)


@dataclass
class Machine:
    """A provider that loads what it is told to, in the place of what is coldest where it must."""

    name: str
    free_bytes: int | None = 8 * GIB
    models: Mapping[str, int] = field(default_factory=lambda: {"demo": GIB})
    load_s: float = 3
    fails: bool = False
    away: bool = False
    draining: bool = False
    busy: set[str] = field(default_factory=set)
    loaded: list[str] = field(default_factory=list)
    loading: dict[str, float] = field(default_factory=dict)
    loads: int = 0
    evicted: list[str] = field(default_factory=list)

    @property
    def active_bytes(self) -> int:
        return sum(self.models[model] for model in (*self.loaded, *self.loading))

    def ad(self, model: str) -> ModelAd:
        return advert(model, size_bytes=self.models[model], kv_bytes_per_token=0)

    def register(self) -> Register:
        return register(self.name).model_copy(update={"models": [self.ad(model) for model in self.models]})

    def beat(self, seq: int) -> Heartbeat:
        loaded = [
            slot(model, state="running", running=1) if model in self.busy else slot(model) for model in self.loaded
        ]
        slots = (*loaded, *(slot(model, state="loading") for model in self.loading))
        status = "draining" if self.draining else "idle"
        memory = {"free_for_load_bytes": self.free_bytes, "active_bytes": self.active_bytes}
        return beat(seq, status, slots, effective_cap_bytes=1000 * GIB, **memory)

    def told(self, model: str, now_s: float) -> None:
        self.loads += 1
        needed = padded_weights(self.models[model])
        room = self.free_bytes or 0
        while self.loaded and (needed > room - self.active_bytes or len(self.loaded) >= 3):
            idle = [one for one in self.loaded if one not in self.busy]
            if not idle:
                return
            self.loaded.remove(idle[0])
            self.evicted.append(idle[0])
        self.loading[model] = now_s + self.load_s

    def finish(self, now_s: float) -> list[LoadModelStatus]:
        done = [model for model, at_s in self.loading.items() if at_s <= now_s]
        for model in done:
            del self.loading[model]
            if not self.fails:
                self.loaded.append(model)
        word: Any = "failed" if self.fails else "succeeded"
        return [LoadModelStatus(model_id=model, status=word) for model in done]


class World:
    """Machines and the coordinator that sees them: a turn is a second or more, heartbeats come every five."""

    def __init__(self, desired: list[Desired], *machines: Machine, pace: Pace = PACE) -> None:
        self.desired = desired
        self.machines = {one.name: one for one in machines}
        self.pace = pace
        self.now = 0.0
        self.views: dict[str, ProviderView] = {}
        self.history = History(0.0)
        self.placement = Placement((), self.history, ())
        self.orders: list[tuple[float, Order]] = []
        self.generation = 0
        self.beats = 0
        for one in machines:
            self.join(one)
            self.hear(one)

    def join(self, machine: Machine) -> None:
        self.generation += 1
        former = self.views.get(machine.name)
        self.views[machine.name] = fleet.registered(machine.register(), self.generation, self.now, former)

    def leave(self, machine: Machine) -> None:
        self.views[machine.name] = fleet.disconnected(self.views[machine.name], self.now)

    def hear(self, machine: Machine) -> None:
        self.beats += 1
        self.views[machine.name] = fleet.beaten(self.views[machine.name], machine.beat(self.beats), self.now)

    def turn(self, seconds: int = 1, stride: int = 1) -> list[Order]:
        made: list[Order] = []
        for _ in range(0, seconds, stride):
            self.now += stride
            for one in self.machines.values():
                for status in one.finish(self.now):
                    if not one.away:
                        self.views[one.name] = fleet.told(self.views[one.name], status, self.now)
                        self.hear(one)
                if not one.away and self.now % 5 == 0:
                    self.hear(one)
            self.placement = place(self.desired, self.views, self.now, self.history, TIMINGS, TABLES, self.pace)
            self.history = self.placement.history
            for order in self.placement.orders:
                made.append(order)
                self.orders.append((self.now, order))
                machine = self.machines[order.provider_id]
                if not machine.away and order.kind is Kind.LOAD:
                    machine.told(order.model.id, self.now)
        return made

    def warm(self, model: str = "demo") -> list[str]:
        return [name for name, one in self.machines.items() if model in one.loaded]

    def blocked(self) -> dict[str, Blocked]:
        return dict(self.placement.pools[0].blocked)


def fleet_of(count: int, **values: Any) -> list[Machine]:
    return [Machine(f"p{number}", **values) for number in range(count)]


def test_as_many_as_are_wanted_are_loaded_and_no_more() -> None:
    world = World([wanted(all=3)], *fleet_of(5))
    assert len(world.turn()) == 3
    assert world.turn(300) == []
    assert len(world.warm()) == 3
    assert world.placement.pools[0].missing == 0


def test_nothing_is_ordered_without_a_pool_or_when_it_is_warm_already() -> None:
    assert World([wanted()], *fleet_of(3)).turn(100) == []
    machines = fleet_of(3)
    machines[1].loaded = ["demo"]
    assert World([wanted(all=1)], *machines).turn(100) == []


def test_pools_are_of_providers_by_name() -> None:
    machines = [Machine("mac-1"), Machine("mac-2"), Machine("gpu-1"), Machine("gpu-2")]
    world = World([wanted(mac=1, gpu=2)], *machines)
    world.turn(50)
    assert len([name for name in world.warm() if name.startswith("mac")]) == 1
    assert len([name for name in world.warm() if name.startswith("gpu")]) == 2


def test_a_pool_may_be_one_provider_by_its_id() -> None:
    seen = replace(view("00000000-0000-4000-8000-000000000001"), name="mini")
    for pattern, found in ((seen.provider_id, True), ("mini", True), ("m*", True), ("0*", False), ("*", True)):
        assert matches(Pool(pattern, 1), seen) is found


@pytest.mark.parametrize("unknown", ["active_bytes", "free_for_load_bytes", "effective_cap_bytes", "cache_bytes"])
def test_a_reading_that_is_not_sent_makes_no_room(unknown: str) -> None:
    """Beside a model that is used, nothing is ordered on the strength of it; on an empty machine its own check is."""
    told = {"free_for_load_bytes": 5 * GIB, "active_bytes": 2 * GIB, unknown: None}
    ads = {model: advert(model) for model in ("demo", "used")}
    busy = replace(view("p", slot("used", running=1)), models=ads, memory=memory(**told))
    judged = judge(busy, "demo", (), 0.0, TIMINGS, TABLES)
    if unknown in ("active_bytes", "free_for_load_bytes"):
        assert judged is Blocked.NO_ROOM
    else:
        assert isinstance(judged, Cost)
    empty = judge(replace(busy, slots={}), "demo", (), 0.0, TIMINGS, TABLES)
    assert isinstance(empty, Cost)
    assert empty.unknown is (unknown == "free_for_load_bytes")


def test_a_provider_in_two_pools_counts_for_both() -> None:
    world = World([wanted(mac=1, all=1)], Machine("mac-1"), Machine("gpu-1"))
    world.turn(50)
    assert world.warm() == ["mac-1"]


def test_the_pool_has_to_be_short_for_a_while_and_the_coordinator_up() -> None:
    world = World([wanted(all=1)], Machine("p"), pace=Pace(start_s=60, settle_s=10))
    assert world.turn(59) == []
    assert len(world.turn(1)) == 1
    world = World([], Machine("p"), pace=Pace(start_s=0, settle_s=10))
    world.turn(100)
    world.desired = [wanted(all=1)]
    assert world.turn(10) == []
    assert len(world.turn(1)) == 1


def test_no_more_orders_are_given_in_a_minute_than_allowed() -> None:
    world = World([wanted(all=40)], *fleet_of(50), pace=replace(PACE, per_minute=12))
    assert len(world.turn(59)) == 12
    assert len(world.turn(60)) == 12
    world.turn(200)
    assert len(world.warm()) == 40


def test_the_idle_the_cool_and_the_fast_are_preferred() -> None:
    machines = fleet_of(4)
    machines[0].models = machines[3].models = {"demo": GIB, "chat": GIB}
    machines[0].loaded, machines[0].busy = ["chat"], {"chat"}
    world = World([wanted(all=1)], *machines)
    world.views["p1"] = replace(world.views["p1"], thermal="serious")
    world.views["p2"] = replace(world.views["p2"], load_bytes_per_s=1e8)
    assert [order.provider_id for order in world.turn()] == ["p3"]


REFUSED = [
    (Machine("p", free_bytes=GIB), Blocked.MEMORY_CAP),
    (Machine("p", models={}), Blocked.NOT_ADVERTISED),
    (Machine("p", draining=True), Blocked.DRAINING),
    (Machine("p", models={"demo": GIB, "x": GIB}, loading={"x": 10**6}), Blocked.BUSY_LOADING),
    (Machine("p", models={"demo": GIB, "x": 7 * GIB}, loaded=["x"], busy={"x"}), Blocked.NO_ROOM),
    (Machine("p", free_bytes=None, models={"demo": GIB, "x": GIB}, loaded=["x"], busy={"x"}), Blocked.NO_ROOM),
    (
        Machine("p", models={"demo": GIB, **dict.fromkeys("xyz", GIB)}, loaded=list("xyz"), busy={"x"}),
        Blocked.NO_ROOM,
    ),
]


@pytest.mark.parametrize(("machine", "why"), REFUSED)
def test_whoever_cannot_is_not_asked_and_the_reason_is_told(machine: Machine, why: Blocked) -> None:
    world = World([wanted(all=1)], machine)
    assert world.turn(100) == []
    assert world.blocked() == {"p": why}
    assert world.placement.pools[0].missing == 1


def test_who_is_away_silent_or_keeps_dying_is_not_asked() -> None:
    machine = Machine("p")
    world = World([wanted(all=1)], machine)
    machine.away = True
    world.leave(machine)
    assert world.turn(3) == []
    assert world.blocked() == {"p": Blocked.AWAY}
    world.join(machine)
    assert world.turn(3) == []
    assert world.blocked() == {"p": Blocked.SILENT}
    failed = Slot(model="demo", state="failed")
    world.views["p"] = fleet.beaten(world.views["p"], beat(99, slots=(failed,)), world.now)
    assert world.turn(3) == []
    assert world.blocked() == {"p": Blocked.SLOT_FAILED}


def test_a_slot_that_has_failed_holds_no_memory_and_takes_no_place() -> None:
    failed = [slot(model, state="failed") for model in "xyz"]
    for reported in [dict[str, Any](), {"free_for_load_bytes": None}]:
        seen = fleet.beaten(view("p", models={"demo": advert()}), beat(2, slots=tuple(failed), **reported), 0.0)
        verdict = judge(seen, "demo", (), 0.0, Timings(), TABLES)
        assert isinstance(verdict, Cost)
        assert not verdict.evicts


def test_what_is_used_is_never_evicted_and_what_nobody_wants_is() -> None:
    both = {"demo": 4 * GIB, "old": 4 * GIB}
    busy, idle = Machine("p0", models=both, loaded=["old"], busy={"old"}), Machine("p1", models=both, loaded=["old"])
    world = World([wanted(all=2)], busy, idle)
    world.turn(100)
    assert world.warm() == ["p1"]
    assert world.warm("old") == ["p0"]
    assert world.blocked() == {"p0": Blocked.NO_ROOM, "p1": Blocked.HELD}


def test_two_desires_never_push_each_other_out() -> None:
    both = {"a": 4 * GIB, "b": 4 * GIB}
    world = World([wanted("a", all=1), wanted("b", all=1)], Machine("p", models=both))
    world.turn(500)
    assert (world.warm("a"), world.warm("b")) == (["p"], [])
    assert world.machines["p"].loads == 1
    assert world.placement.pools[1].blocked == {"p": Blocked.NO_ROOM}


def test_what_is_beyond_its_pool_gives_way_to_what_is_short() -> None:
    both = {"a": 4 * GIB, "b": 4 * GIB}
    machines = [Machine(f"p{number}", models=both, loaded=["a"]) for number in range(3)]
    world = World([wanted("a", all=1), wanted("b", all=2)], *machines)
    world.turn(500)
    assert (len(world.warm("a")), len(world.warm("b"))) == (1, 2)


def test_a_failed_load_is_put_off_for_longer_each_time() -> None:
    world = World([wanted(all=1)], Machine("p", fails=True))
    world.turn(3600)
    times = [at_s for at_s, _ in world.orders]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert 33 <= pauses[0] <= 40
    assert pauses[4] >= 480
    assert len(times) <= 8
    assert world.blocked() == {"p": Blocked.BACKING_OFF}
    world.machines["p"].fails = False
    world.turn(3600)
    assert world.warm() == ["p"]


def test_who_fails_makes_room_for_another() -> None:
    world = World([wanted(all=1)], Machine("a", fails=True), Machine("b"))
    world.turn(60)
    assert world.warm() == ["b"]


def test_a_model_that_leaves_again_soon_counts_as_failed() -> None:
    machine = Machine("p")
    world = World([wanted(all=1)], machine)
    for _ in range(3600):
        world.turn()
        machine.loaded.clear()
    assert machine.loads <= 8
    machine = Machine("p")
    world = World([wanted(all=1)], machine)
    for _ in range(3):
        world.turn(1000)
        machine.loaded.clear()
    world.turn(100)
    assert machine.loads == 4


def test_a_load_that_nobody_hears_of_again_has_failed() -> None:
    machine = Machine("p", load_s=10**6)
    world = World([wanted(all=1)], machine, pace=replace(PACE, load_s=100))
    world.turn(99)
    assert world.history.attempts["p", "demo"].state is State.UNDER_WAY
    world.turn(5)
    assert world.history.attempts["p", "demo"].failures == 1


def flap(world: World, seconds: int) -> list[Order]:
    """Every provider is gone and comes back, and is silent for a moment before its first heartbeat."""
    made: list[Order] = []
    for one in world.machines.values():
        one.away = True
        world.leave(one)
    made += world.turn(seconds)
    for one in world.machines.values():
        world.join(one)
    made += world.turn(4)
    for one in world.machines.values():
        one.away = False
        world.hear(one)
    return made


def test_a_flap_of_the_whole_fleet_for_20_s_evicts_nobody_and_reloads_nothing() -> None:
    world = World([wanted(all=5), wanted("other", all=2)], *fleet_of(8, models={"demo": GIB, "other": GIB}))
    world.turn(100)
    before = {name: list(one.loaded) for name, one in world.machines.items()}
    loads = len(world.orders)
    for _ in range(3):
        assert flap(world, 20) == []
        assert world.turn(60) == []
    assert {name: one.loaded for name, one in world.machines.items()} == before
    assert len(world.orders) == loads == 7
    assert not any(one.evicted for one in world.machines.values())


def test_silence_for_20_s_on_open_sockets_orders_nothing() -> None:
    world = World([wanted(all=3)], *fleet_of(6))
    world.turn(30)
    for one in world.machines.values():
        one.away = True
    assert world.turn(20) == []
    for one in world.machines.values():
        one.away = False
    assert world.turn(60) == []


def test_a_provider_that_is_lost_is_replaced_and_not_unloaded_when_it_returns() -> None:
    world = World([wanted(all=1)], *fleet_of(2))
    world.turn(20)
    (lost,) = world.warm()
    machine = world.machines[lost]
    machine.away = True
    world.leave(machine)
    assert world.turn(40) == []
    assert [order.provider_id for order in world.turn(20)] == [name for name in ("p0", "p1") if name != lost]
    machine.away = False
    world.join(machine)
    world.hear(machine)
    assert world.turn(200) == []
    assert len(world.warm()) == 2


def test_a_drained_provider_is_replaced() -> None:
    world = World([wanted(all=1)], *fleet_of(2))
    world.turn(20)
    (one,) = world.warm()
    world.machines[one].draining = True
    world.turn(30)
    assert len(world.warm()) == 2


def test_a_fetch_that_failed_is_asked_for_again_where_it_is_needed() -> None:
    machine = Machine("p", models={})
    world = World([wanted(all=1)], machine)
    assert world.turn(100) == []
    failed = PrefetchStatus(model_id="demo", status="failed", reason="no network")
    world.views["p"] = fleet.told(world.views["p"], failed, world.now)
    (order,) = world.turn()
    assert (order.kind, order.provider_id) == (Kind.PREFETCH, "p")
    assert world.turn(20) == []
    world.views["p"] = fleet.told(world.views["p"], failed, world.now)
    assert world.turn(25) == []
    (order,) = world.turn(20)
    assert order.kind is Kind.PREFETCH
    world.views["p"] = replace(world.views["p"], models={"demo": advert(size_bytes=GIB, kv_bytes_per_token=0)})
    machine.models = {"demo": GIB}
    world.turn(120)
    assert world.warm() == ["p"]


def test_without_the_right_to_order_it_only_watches() -> None:
    world = World([wanted(all=1)], Machine("p"))
    seen = place(world.desired, world.views, 5.0, world.history, TIMINGS, TABLES, PACE, may_order=False)
    assert seen.orders == ()
    assert seen.pools[0].missing == 1


def drawn(rng: random.Random) -> World:
    models = {f"m{number}": rng.randint(1, 6) * GIB for number in range(rng.randint(1, 4))}
    machines = []
    for number in range(rng.randint(1, 8)):
        served = {model: size for model, size in models.items() if rng.random() < 0.8}
        free = rng.choice([None, 2 * GIB, 5 * GIB, 9 * GIB, 20 * GIB])
        loaded = rng.sample(list(served), rng.randint(0, min(2, len(served))))
        if sum(padded_weights(served[one]) for one in loaded) > (free or 0):
            loaded = []
        busy = {model for model in loaded if rng.random() < 0.5}
        name = f"{rng.choice(['mac', 'gpu'])}{number}"
        fails = rng.random() < 0.2
        machines.append(Machine(name, free, served, rng.randint(1, 40), fails, busy=busy, loaded=loaded))
    pools = [{"all": rng.randint(1, 3)}, {"mac": rng.randint(0, 3), "gpu": rng.randint(0, 3)}, {"mac": 1, "all": 2}]
    desired = [wanted(model, **rng.choice(pools)) for model in models if rng.random() < 0.8]
    return World(desired, *machines, pace=replace(PACE, per_minute=rng.choice([1, 3, 12])))


@pytest.mark.parametrize("part", range(4))
def test_it_converges_and_keeps_the_rules_whatever_happens(part: int) -> None:
    """Minutes of faults, then peace: in the end nothing more is ordered, and what is still missing has a reason that
    stands. Meanwhile no order breaks a rule."""
    for seed in range(part, examples(4 * 200), 4):
        rng = random.Random(seed)
        world = drawn(rng)
        for _ in range(60):
            disturb(world, rng)
            for _ in range(3):
                holding = {name: list(one.loaded) for name, one in world.machines.items()}
                obeyed(world, holding, world.turn(stride=2), seed)
        for one in world.machines.values():
            one.fails = one.draining = False
            if one.away:
                one.away = False
                world.join(one)
                world.hear(one)
        world.turn(3000, stride=10)
        assert world.turn(900, stride=10) == [], seed
        for state in world.placement.pools:
            if state.missing:
                assert set(state.blocked.values()) <= LASTING, (seed, state)


LASTING = {Blocked.HELD, Blocked.MEMORY_CAP, Blocked.NO_ROOM, Blocked.NOT_ADVERTISED}


def disturb(world: World, rng: random.Random) -> None:
    machine = rng.choice(list(world.machines.values()))
    match rng.randrange(8):
        case 0 if not machine.away:
            machine.away = True
            world.leave(machine)
        case 1 if machine.away:
            machine.away = False
            world.join(machine)
            world.hear(machine)
        case 2:
            machine.fails = not machine.fails
        case 3 if machine.loaded:
            machine.busy ^= {rng.choice(machine.loaded)}
        case 4 if idle := [model for model in machine.loaded if model not in machine.busy]:
            machine.loaded.remove(rng.choice(idle))
        case 5:
            machine.draining = not machine.draining


def obeyed(world: World, holding: Mapping[str, list[str]], orders: list[Order], seed: int) -> None:
    """Of one turn's orders; the machines have already begun to follow them."""
    recent = [at_s for at_s, _ in world.orders if world.now - at_s < 60]
    assert len(recent) <= world.pace.per_minute, seed
    loads = [order.provider_id for order in orders if order.kind is Kind.LOAD]
    assert len(loads) == len(set(loads)), seed
    for order in orders:
        view, machine = world.views[order.provider_id], world.machines[order.provider_id]
        assert not machine.away, seed
        assert cold_load(view, view.models[order.model.id]) is not ColdLoad.REFUSED, seed
        assert not (set(holding[machine.name]) - set(machine.loaded)) & machine.busy, seed
    now = {name: one.loaded for name, one in world.machines.items()}
    for desired in world.desired if orders else ():
        for pool in desired.pools:
            before, after = (hold(held, pool, desired.model.id) for held in (holding, now))
            assert after >= min(before, pool.min_warm), (seed, "an order has made a pool short")


def hold(held: Mapping[str, list[str]], pool: Pool, model: str) -> int:
    return sum(fnmatchcase(name, pool.providers) and model in models for name, models in held.items())
