"""A coordinator that has as many providers as it takes: who is turned away, and who is not."""

import pytest

from coordinator import hub
from coordinator.config import Bounds
from coordinator.fleet import Presence
from provider.protocol import CLOSE_ENDED, CLOSE_SUPERSEDED, ModelsUpdate
from tests.unit.coordinator.hub_world import World, chunk, heartbeat, play, settle, taken, uuid_of
from tests.unit.coordinator.views import advert

TIGHT = Bounds(of_a_token=2, in_all=3)


def turned_away(world: World, reason: str) -> float:
    name = "darkbloom_providers_turned_away_total"
    return world.hub.metrics.registry.get_sample_value(name, {"reason": reason}) or 0.0


def test_a_newcomer_of_a_token_that_is_full_is_turned_away_and_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(world: World) -> None:
        there = [await world.join(number, owner=1) for number in (0, 1)]
        for _ in range(20):
            late = await world.join(2, owner=1)
            assert late.closed == hub.CLOSE_NO_PLACE
            assert late.heard == []
        assert [wires.closed for wires in there] == [None, None]
        assert list(world.hub.views) == world.registered == [uuid_of(0), uuid_of(1)]
        assert turned_away(world, "token_providers") == 20
        assert not [task for task in world.serving[2:] if not task.done()]
        other = await world.join(3, owner=2)
        beyond = await world.join(4, owner=3)
        assert (other.closed, beyond.closed) == (None, hub.CLOSE_NO_PLACE)
        assert turned_away(world, "all_providers") == 1
        there[0].lose(CLOSE_ENDED)
        await settle()
        assert (await world.join(2, owner=1)).closed is None

    with caplog.at_level("WARNING", "coordinator"):
        play(scene, TIGHT)
    said = [record.getMessage() for record in caplog.records if "provider_turned_away" in record.getMessage()]
    assert [line.split(" ", 2)[1] for line in said] == ["reason=token_providers", "reason=all_providers"]


def test_who_is_connected_or_may_come_back_keeps_its_place_against_newcomers() -> None:
    async def scene(world: World) -> None:
        here, away = await world.join(0, owner=1), await world.join(1, owner=1)
        with world.lease("j.1", 1) as inbox:
            away.say(chunk(0))
            await settle()
            away.lose()
            await settle()
            for seq in (2, 3, 4, 5):
                assert (await world.join(2, owner=1)).closed == hub.CLOSE_NO_PLACE
                here.say(heartbeat(seq))
                await world.wait(11)
            back = await world.join(1, {"j.1": 1}, owner=1)
            back.say(chunk(1))
            again = await world.join(0, owner=1)
            assert (back.closed, again.closed, here.closed) == (None, None, CLOSE_SUPERSEDED)
            assert taken(inbox) == [0, 1]
            assert world.presence(0) is world.presence(1) is Presence.ALIVE
        back.lose()
        await settle()
        for seq in (2, 3, 4, 5, 6):
            again.say(heartbeat(seq))
            await world.wait(9.5)
        assert (await world.join(2, owner=1)).closed is None, "after 45 s its place is free"
        assert (await world.join(1, owner=1)).closed == hub.CLOSE_NO_PLACE
        assert uuid_of(1) in world.hub.views, "it stays listed as away"

    play(scene, TIGHT)


def test_a_connected_provider_is_not_put_out_by_another_token_that_names_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every key of a client reads the ids of the fleet."""

    async def scene(world: World) -> None:
        victim = await world.join(0, owner=1)
        with world.lease() as inbox:
            victim.say(chunk(0))
            for _ in range(3):
                thief = await world.join(0, resume={"j.1": 1}, model="another", owner=2)
                assert (thief.closed, thief.heard) == (hub.CLOSE_NO_PLACE, [])
            victim.say(chunk(1))
            await settle()
            assert (victim.closed, taken(inbox)) == (None, [0, 1])
        assert world.registered == [uuid_of(0)]
        assert "another" not in world.hub.views[uuid_of(0)].models
        assert turned_away(world, "other_token") == 3
        again = await world.join(0, owner=1)
        assert (again.closed, victim.closed) == (None, CLOSE_SUPERSEDED), "its own token is its own"
        again.lose()
        await settle()
        rotated = await world.join(0, owner=2)
        assert rotated.closed is None
        assert (await world.join(0, owner=1)).closed == hub.CLOSE_NO_PLACE, "now it came by the other"

    with caplog.at_level("WARNING", "coordinator"):
        play(scene)
    said = [record.getMessage() for record in caplog.records if "provider_turned_away" in record.getMessage()]
    assert said[0] == f"provider_turned_away reason=other_token token=2 times=1 provider={uuid_of(0)}"
    assert len(said) == 2


def test_another_token_does_not_take_over_a_place_without_room_of_its_own() -> None:
    async def scene(world: World) -> None:
        first, second = await world.join(0, owner=1), await world.join(1, owner=2)
        await world.join(2, owner=2)
        first.lose()
        await settle()
        assert (await world.join(0, owner=2)).closed == hub.CLOSE_NO_PLACE
        assert (await world.join(0, owner=1)).closed is None
        second.lose()
        await settle()
        moved = await world.join(1, owner=1)
        assert moved.closed is None
        assert (await world.join(3, owner=1)).closed == hub.CLOSE_NO_PLACE

    play(scene, TIGHT)


def test_sockets_that_never_register_do_not_pile_up() -> None:
    async def scene(world: World) -> None:
        silent = [await world.dial(owner=1) for _ in range(2)]
        await settle()
        late = await world.dial(owner=1)
        await settle()
        assert late.closed == hub.CLOSE_NO_PLACE
        assert (await world.join(0, owner=2)).closed is None
        silent[0].lose()
        await settle()
        assert (await world.join(1, owner=1)).closed is None

    play(scene, TIGHT)


def test_a_list_of_models_that_grows_beyond_the_room_of_a_token_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.roster.SPARE_MODELS", 0)
    names = tuple(f"m{number}" for number in range(60))

    async def scene(world: World) -> None:
        one = await world.join(0, owner=1, models=names[:30])
        assert (await world.join(1, owner=1, models=names[:21])).closed == hub.CLOSE_NO_PLACE
        two = await world.join(1, owner=1, models=names[:20])
        one.say(ModelsUpdate(models=[advert(name) for name in names[:31]]))
        await settle()
        assert [said["message"].count("token_models") for said in one.told("protocol_error")] == [1]
        assert (one.closed, len(world.hub.views[uuid_of(0)].models)) == (None, 30)
        two.say(ModelsUpdate(models=[advert(name) for name in names[:10]]))
        one.say(ModelsUpdate(models=[advert(name) for name in names[:40]]))
        await settle()
        assert [len(world.hub.views[uuid_of(number)].models) for number in (0, 1)] == [40, 10]
        assert turned_away(world, "token_models") == 2

    play(scene, TIGHT)
