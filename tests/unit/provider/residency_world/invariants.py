"""What must hold of a provider at every moment, and what when everything has come to rest."""

from provider.cool_off import LONGEST_S
from provider.memory.admission import max_loadable_weight
from provider.memory.floors import activation_reserve
from provider.memory.requirement import padded_weights
from provider.operations import Operations
from provider.residency import Residency
from tests.unit.provider.residency_world.worker import ScriptedWorker
from tests.unit.provider.residency_world.world import World


def check(world: World) -> None:
    """At every moment: what the workers hold and may take, and the largest floor of whoever is served or loaded,
    stay within the cap; nobody has less than it can serve with; no retired build is served."""
    residency, occupancy = world.residency, world.residency.occupancy
    assert committed(world) <= occupancy.bounds.cap_bytes, "over the cap"
    granted = occupancy.granted
    for id, share in granted.items():
        assert share >= occupancy.models[id].member.minimum_bytes, f"{id} has too little to serve with"
    assert all(one.pool_bytes <= granted.get(served_as(world, one), 0) for one in world.workers if one.alive)
    assert len(world.workers) <= 3
    assert len(occupancy.loading) <= 1
    assert occupancy.loading or not occupancy.ledger.outstanding_bytes
    for one in occupancy.models.values():
        if one.slot.status == "failed":
            assert (one.slot.loaded, granted.get(one.id)) == (None, None), f"{one.id} has no worker, and yet room"
    served = [occupancy.models[id] for id in residency.advertised_ids]
    assert not any(residency.retired.covers(one.id, one.digest) for one in served)


def check_admitted(world: World, newcomer: ScriptedWorker) -> None:
    """A worker that has just been started: what it needs was there, whatever other programs had taken by then."""
    occupancy, id = world.residency.occupancy, served_as(world, newcomer)
    model = occupancy.models[id]
    if id not in occupancy.loading or model.slot.loaded is not None:
        return  # it takes a dead one's place
    free = world.available_bytes + newcomer.held_bytes - still_to_come(world)
    beyond_the_cap = world.physical_bytes - occupancy.bounds.cap_bytes
    assert occupancy.required(model, model.charge) <= free - beyond_the_cap, f"{id} was loaded into others' memory"


def still_to_come(world: World) -> int:
    """What workers that take dead ones' places have not taken yet."""
    there = {served_as(world, one) for one in world.workers if one.loaded}
    coming = [one for one in world.residency.occupancy.residents if one.id not in there]
    staged = {served_as(world, one): one.staged_bytes for one in world.workers}
    return sum(one.slot.weight_bytes - staged.get(one.id, 0) for one in coming)


def committed(world: World) -> int:
    """All that the workers hold and may still take, and what activations need beside it."""
    occupancy = world.residency.occupancy
    serving = {*world.residency.advertised_ids, *(served_as(world, one) for one in world.workers)}
    loading = world.residency.occupancy.loading
    taken = sum(weights(one, served_as(world, one) in loading) + one.pool_bytes for one in world.workers)
    if not taken:
        return 0
    return taken + activation_reserve(serving, occupancy.bounds.floors)


def weights(worker: ScriptedWorker, loading: bool) -> int:
    """Charged with their padding until their load has ended: what has turned out heavier is then unloaded again, or
    the others have given up room for it."""
    inside = worker.build.weight_bytes + worker.build.baseline_bytes
    return min(inside, padded_weights(worker.build.size_bytes)) if loading else inside


def served_as(world: World, worker: ScriptedWorker) -> str:
    """A model may be served by one build or another."""
    return worker.build.name.partition("@")[0]


async def check_rest(world: World) -> None:
    """Nothing is under way any more: no marker, no claim, no share that differs from what the pure function gives."""
    check(world)
    residency, occupancy = world.residency, world.residency.occupancy
    assert (occupancy.loading, occupancy.joining, occupancy.chosen) == (set(), set(), set())
    assert occupancy.awaited == {}
    assert occupancy.ledger.outstanding_bytes == 0
    residents = {one.id for one in occupancy.residents}
    assert residents <= set(residency.advertised_ids), "a model that is not served has stayed"
    assert not any(one.slot.draining for one in occupancy.residents)
    assert occupancy.granted == occupancy.shares(occupancy.reserve()), "a regrow was lost"
    told = {served_as(world, one): (one.pool_bytes, one.reserve_bytes) for one in world.workers}
    assert told == {id: (share, occupancy.reserve()) for id, share in occupancy.granted.items()}
    assert residency.granting.settled
    for one in occupancy.models.values():
        waits = one.slot.standing.retry_in_s is None or 0 < one.slot.standing.retry_in_s <= LONGEST_S
        assert one.slot.status in ("unloaded", "ready") or (one.slot.status == "failed" and waits)
    check_offers(residency, world.operations)
    await check_capacity(world)


def check_offers(residency: Residency, operations: Operations) -> None:
    """Whatever is still put off would strand somebody."""
    occupancy = residency.occupancy
    for id in operations.deferred:
        occupancy.joining.add(id)
        assert occupancy.shares(occupancy.reserve()) is None, f"{id} was forgotten"
        occupancy.joining.discard(id)


async def check_capacity(world: World) -> None:
    occupancy = world.residency.occupancy
    published = await world.complete(world.residency.capacity())
    reading, reserve = occupancy.reading(world.memory()), occupancy.reserve()
    served = [occupancy.models[id].member.minimum_bytes for id in world.residency.advertised_ids]
    headroom = reserve + min(served, default=2**30)
    assert published.memory.activation_reserve_bytes == reserve
    assert published.memory.free_for_load_bytes == max_loadable_weight(reading, headroom)
    assert published.memory.active_bytes == sum(one.build.weight_bytes + one.kv_bytes for one in world.workers)
    shown = {one.model for one in published.slots}
    assert shown == {one.id for one in world.residency.slots if one.status != "unloaded"}
