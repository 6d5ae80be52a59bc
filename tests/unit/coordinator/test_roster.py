"""Who has a place at a coordinator, and who is turned away."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.config import Bounds
from coordinator.ledger import Size
from coordinator.roster import MODELS_EACH, SPARE_MODELS, Full, Roster
from tests.soak import examples

BOUNDS = Bounds(of_a_token=3, in_all=4)
OF_A_TOKEN = 3 * MODELS_EACH + SPARE_MODELS
IN_ALL = 4 * MODELS_EACH + SPARE_MODELS


@dataclass
class Told:
    """What the places come to, added up anew each time."""

    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def full(self, name: str, owner: int, models: int) -> Full | None:
        by, had = self.places.get(name, (None, 0))
        if by == owner and models <= had:
            return None
        others = [held for other, held in self.places.items() if other != name]
        theirs = [held[1] for held in others if held[0] == owner]
        if len(theirs) >= 3:
            return Full.TOKEN_PROVIDERS
        if sum(theirs) + models > OF_A_TOKEN:
            return Full.TOKEN_MODELS
        if len(others) >= 4:
            return Full.ALL_PROVIDERS
        return Full.ALL_MODELS if sum(held[1] for held in others) + models > IN_ALL else None


TAKING = st.tuples(
    st.sampled_from("abcdefgh"), st.integers(1, 3), st.none() | st.sampled_from([1, 20, 300, 500, OF_A_TOKEN, 1110])
)


@settings(max_examples=examples(3000))
@given(steps=st.lists(TAKING, max_size=40))
def test_a_place_is_taken_where_there_is_one_and_kept_by_who_has_it(steps: list[tuple[str, int, int | None]]) -> None:
    roster, told = Roster(BOUNDS), Told()
    for name, owner, models in steps:
        if models is None:
            roster.leave(name)
            told.places.pop(name, None)
        else:
            full = roster.take(name, owner, Size(1, models, models))
            assert full is told.full(name, owner, models)
            if full is None:
                told.places[name] = owner, models
        assert len(roster) == len(told.places)
        assert all(roster.owner(held) == by for held, (by, _) in told.places.items())


def test_sockets_that_have_not_said_who_they_are_are_bounded_beside_the_places() -> None:
    roster = Roster(BOUNDS)
    for name in "abc":
        assert roster.take(name, 1, Size(1, 1, 1)) is None
    with roster.greeting(1) as one, roster.greeting(1) as two, roster.greeting(1) as three:
        assert (one, two, three) == (None, None, None)
        with roster.greeting(1) as more:
            assert more is Full.TOKEN_PROVIDERS
        with roster.greeting(2) as another, roster.greeting(3) as last:
            assert (another, last) == (None, Full.ALL_PROVIDERS)
    with roster.greeting(1) as again:
        assert again is None
