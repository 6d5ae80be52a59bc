"""Who is listed no more where too many have left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import fleet
from coordinator.departed import MOST_OF_A_TOKEN, Departed
from coordinator.ledger import NOTHING, Size, whole
from provider.protocol import CLOSE_ENDED, LoadModelStatus
from tests.soak import examples
from tests.unit.coordinator.hub_world import World, heartbeat, play, settle, uuid_of
from tests.unit.coordinator.views import advert, slot, view

MOST_OF_ONE, MOST_IN_ALL = Size(4, 12, 40), Size(6, 20, 60)


def test_a_fleet_of_two_thousand_providers_of_twenty_models_fits_into_the_bounds_of_one_token() -> None:
    names = [f"/srv/models/an-organisation/a-model-of-{one}b-instruct-4bit" for one in range(20)]
    digests = {name: advert(name, weight_digest="0" * 64) for name in names}
    one = whole(view("p", *(slot(name) for name in names[:3]), models=digests))
    assert Size(2_000, 2_000 * one.entries, 2_000 * one.characters).within(MOST_OF_A_TOKEN)


def test_all_that_a_provider_has_told_at_length_is_counted() -> None:
    plain = whole(view("p"))
    noted = fleet.told(view("p"), LoadModelStatus(model_id="m", status="failed", reason="x" * 100), 0.0)
    assert whole(noted) - plain == Size(0, 1, 100)
    assert (whole(view("p", slot("abc"))) - plain).entries == 1
    assert (whole(view("p", models={"abc": advert("abc", quantization="4bit")}))).characters == 3 + 7 + 4


Change = tuple[str, int, Size | None]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abcdefghij"),
        st.integers(1, 2),
        st.none() | st.builds(Size, st.just(1), st.integers(0, 8), st.integers(0, 30)),
    ),
    max_size=40,
)


@settings(max_examples=examples(1500))
@given(changes=CHANGES)
def test_the_oldest_go_first_of_the_token_and_of_all_and_no_more_than_must(changes: list[Change]) -> None:
    departed = Departed(MOST_OF_ONE, MOST_IN_ALL)
    kept: dict[str, tuple[int, Size]] = {}

    def total(owner: int | None = None) -> Size:
        return sum((size for by, size in kept.values() if owner in (None, by)), NOTHING)

    for name, owner, told in changes:
        kept.pop(name, None)
        if told is None:
            departed.back(name)
            continue
        kept[name] = owner, told
        expected = []
        while not total(owner).within(MOST_OF_ONE):
            expected.append(next(one for one, (by, _) in kept.items() if by == owner))
            del kept[expected[-1]]
        while not total().within(MOST_IN_ALL):
            expected.append(next(iter(kept)))
            del kept[expected[-1]]
        assert list(departed.left(name, owner, told)) == expected
        assert len(departed) == len(kept)


def test_a_hub_forgets_the_oldest_of_those_that_left_and_nobody_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.registry.Departed", lambda: Departed(Size(2, 100, 10_000)))

    async def scene(world: World) -> None:
        stays = await world.join(0)
        for number in range(1, 5):
            wires = await world.join(number, model=f"m{number}")
            wires.lose()
            await settle()
        for seq in range(2, 7):
            assert len(world.hub.views) == 5, "whoever may still come back to its answers is not forgotten"
            stays.say(heartbeat(seq))
            await world.wait(9.5)
        assert list(world.hub.views) == [uuid_of(number) for number in (0, 3, 4)]
        assert world.hub.views.models == ["demo", "m3", "m4"]
        await world.join(3, model="m3")
        stays.lose(CLOSE_ENDED)
        await settle()
        assert set(world.hub.views) == {uuid_of(number) for number in (0, 3, 4)}
        await world.wait(700)

    play(scene)
