"""Doctor's verdict is what the gate does: the same random machine is judged by the one and met by the other."""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from provider.catalog import Model
from provider.fitness import Candidate, FitReport, MachineFacts, judge_fit
from provider.loading import MAX_RESIDENT_MODELS, Loading, LoadRefused
from provider.memory.caps import GIB, kv_budget
from provider.memory.fit import Fit
from provider.memory.grants import shares
from provider.memory.requirement import padded_weights
from provider.pipe import EngineState, Report
from provider.system_memory import SystemMemory
from tests.soak import examples
from tests.unit.provider.residency_world.builds import Build, build
from tests.unit.provider.residency_world.virtual_loop import play
from tests.unit.provider.residency_world.world import World

MACHINES = examples(10_000)
PARTS = 4
SIZES_GIB = (8, 16, 24, 24, 32, 32, 36, 48, 64, 80, 128)
IDS = ("a", "b", "c", "d", "e")


@dataclass(frozen=True)
class Described:
    """One machine twice: as doctor hears of it, and what the gate will find."""

    facts: MachineFacts
    builds: list[Build]
    config: dict[str, Any]


def quarter(random: Random, low: float, high: float) -> float:
    """Of a GiB: what is told in GiB must be whole bytes."""
    return random.randint(int(4 * low), int(4 * high)) / 4


def described(random: Random) -> Described:
    physical = random.choice(SIZES_GIB)
    builds = [
        build(
            id, quarter(random, 0.25, physical), kv_kib=random.choice((4, 48, 256)), context=random.choice((256, 65536))
        )
        for id in IDS
    ]
    reserve, limit = quarter(random, 0, 6), quarter(random, 4, physical) if random.random() < 0.2 else None
    told = random.choice((None, None, None, 3 * GIB, 7 * GIB))
    fraction = random.choice((0.9, 0.9, 0.8, 1.0))
    seeing = {id for id in IDS if random.random() < 0.2}
    floors = {id: quarter(random, 0.25, 8) for id in IDS if random.random() < 0.6 and id not in seeing}
    target, resident = IDS[0], residents(random, builds[1:], physical * GIB)
    active = sum(resident.values())
    cache = min(int(random.choice((0, 0, 0.1)) * active), physical * GIB - active)
    free = physical * GIB - active - cache
    available = random.choice((free, int(free * random.random()), None))
    facts = MachineFacts(
        physical_bytes=physical * GIB,
        available_bytes=available,
        active_bytes=active,
        cache_bytes=cache,
        reserve_bytes=int(reserve * GIB),
        limit_bytes=None if limit is None else int(limit * GIB),
        cap_fraction=fraction,
        told_reserve_bytes=told,
        advertised=random.choice((None, (), (target,), (target, "b"), IDS, ("c", "d"))),
        resident=resident,
        models=tuple(candidate(one, one.name in seeing) for one in builds),
        target=target,
        floors={id: int(size * GIB) for id, size in floors.items()},
    )
    config = {
        "physical_gib": physical, "floors": floors, "reserve_gib": reserve, "limit_gib": limit,
        "cap_fraction": fraction, "activation_reserve_bytes": told,
    }  # fmt: skip
    return Described(facts, builds, config)


def residents(random: Random, builds: list[Build], physical_bytes: int) -> dict[str, int]:
    found, left = dict[str, int](), physical_bytes
    for one in random.sample(builds, random.randint(0, MAX_RESIDENT_MODELS)):
        if one.size_bytes <= left:
            found[one.name] = one.size_bytes
            left -= one.size_bytes
    return found


def candidate(one: Build, vision: bool) -> Candidate:
    minimum = min(GIB, 8 * one.context * one.kv_kib * 2**10)
    return Candidate(id=one.name, size_bytes=one.size_bytes, vision=vision, minimum_kv_bytes=minimum)


class Met:
    """That machine, with its models resident and idle; the target is loaded through the gate."""

    def __init__(self, described: Described) -> None:
        self.facts = described.facts
        self.world = World(described.builds, **described.config)
        self.occupancy = self.world.residency.occupancy
        self.evicted: list[str] = []

    async def settle(self) -> None:
        facts, world = self.facts, self.world
        for number, id in enumerate(facts.resident):
            await world.complete(world.model(id).slot.start())
            worker = world.worker(id)
            worker.cache_bytes = facts.cache_bytes if number == 0 else 0
            state = EngineState(active_bytes=worker.build.weight_bytes, cache_bytes=worker.cache_bytes)
            worker._on_report(Report([], state=state, at=0.0))
        self.occupancy.advertised = None if facts.advertised is None else list(facts.advertised)
        if facts.available_bytes is not None:
            world.others_bytes = world.available_bytes - facts.available_bytes

    async def load(self) -> LoadRefused | None:
        """Why the target was not loaded."""
        loading = Loading(
            self.occupancy, self.world.residency.granting, self._read, lambda model: None, self._evict,
            self.world.residency.factory.digest_of, self.world.loop.time,
        )  # fmt: skip
        try:
            await self.world.complete(loading.load(self.world.model(self.facts.target), evict=True))
        except LoadRefused as refused:
            return refused
        return None

    async def _read(self) -> SystemMemory:
        now = self.world.memory()
        known = self.facts.available_bytes is not None
        return SystemMemory(
            physical_bytes=now.physical_bytes,
            available_bytes=now.available_bytes if known else None,
            pressure=None,
            read_at_s=now.read_at_s,
        )

    async def _evict(self, model: Model) -> None:
        self.evicted.append(model.id)
        await model.slot.stop()
        self.world.residency.granting.drop(model.id)


def everybody_can_stay(facts: MachineFacts, report: FitReport, met: Met) -> bool:
    """Places and minimal shares: what the gate asks beside memory."""
    members = {id: met.world.model(id).member for id in (*facts.resident, facts.target)}
    weights = sum(facts.resident.values()) + padded_weights(facts.model(facts.target).size_bytes)
    budget = kv_budget(facts.cap_bytes, weights, report.activation_reserve_bytes)
    return len(members) <= MAX_RESIDENT_MODELS and shares(budget, members) is not None


@pytest.mark.parametrize("part", range(PARTS))
def test_the_gate_loads_what_doctor_passes_and_refuses_what_it_fails(part: int) -> None:
    seen = set[Fit]()
    for seed in range(part, MACHINES, PARTS):
        one = described(Random(seed))
        report = judge_fit(one.facts)
        seen.add(report.verdict)

        async def script(one: Described = one, report: FitReport = report) -> None:
            met = Met(one)
            await met.settle()
            refused = await met.load()
            judge(report, met, refused)

        play(script)
    assert seen == set(Fit)


def judge(report: FitReport, met: Met, refused: LoadRefused | None) -> None:
    match report.verdict:
        case Fit.FAIL:
            assert refused is not None
            told = refused.refusal
            assert (told.required_bytes, told.usable_bytes) == (report.required_bytes, report.usable_bytes)
            assert (told.ceiling_bytes, told.largest_bytes) == (report.ceiling_bytes, report.largest_size_bytes)
            assert met.evicted == []
            assert {one.id for one in met.occupancy.residents} == set(met.facts.resident)
        case Fit.WARN:
            assert refused is None
            assert met.evicted or met.facts.cache_bytes
        case Fit.PASS:
            assert refused is None
            assert not (met.evicted and everybody_can_stay(met.facts, report, met))
    assert met.occupancy.ledger.outstanding_bytes == 0
    assert met.occupancy.loading == set()
