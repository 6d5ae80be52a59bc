"""Long answers are written bit by bit, of one moment."""

import asyncio
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.api.slices import json_list, json_object
from coordinator.config import Timings
from coordinator.fleet import ProviderView
from coordinator.reasons import CODES
from coordinator.routing import Chosen, Explanation, Request, explain, route
from coordinator.turns import TURN_S
from provider.api.events import encoded
from tests.fixtures.event_loop import others
from tests.soak import examples
from tests.unit.coordinator.views import MODEL, TABLES, listed, slot, view

TIMINGS = Timings()
ASKED = Request(MODEL, 100)


def test_others_have_their_turns_while_a_list_is_written() -> None:
    async def scene() -> None:
        at: list[int] = []

        def shown(number: int) -> int:
            at.append(beside.turns)
            return number

        each_s = TURN_S / 3.5
        async with others() as beside:
            told = await json_list(range(100), shown, lambda: each_s * len(at))
        assert json.loads(told) == list(range(100))
        assert {at.count(turn) for turn in set(at)} == {4}

    asyncio.run(scene())


def test_an_object_is_made_of_what_is_json_already() -> None:
    told = json_object(a=encoded({"b": "é"}), c=asyncio.run(json_list([], str)))
    assert told == '{"a":{"b":"é"},"c":[]}'.encode()


def fleet(count: int) -> list[ProviderView]:
    draw = random.Random(count)
    seen = []
    for number in range(count):
        one = view(f"p{number}", slot(running=draw.randrange(6), decode_tps=draw.choice([None, 5.0, 50.0])))
        kind = draw.randrange(4)
        seen.append(replace(one, models={}) if kind == 0 else replace(one, draining=kind == 1))
    return seen


@settings(max_examples=examples(1000))
@given(st.integers(0, 12), st.integers(0, 14))
def test_what_is_listed_first_is_cheapest_or_nearest_and_the_counts_are_of_all(count: int, most: int) -> None:
    known = listed(*fleet(count))
    explanation = Explanation(ASKED, known, 0.0, TIMINGS, TABLES)
    every = explain(ASKED, known, 0.0, TIMINGS, TABLES)
    found = explanation.nearest(most)
    assert len(found) == len(set(found)) == min(count, most)
    assert explanation.candidates(found) == [every[one] for one in found]

    def rank(provider_id: str) -> tuple[int, float]:
        one = every[provider_id]
        return (0, one.cost_ms or 0.0) if one.reason is None else (1, -CODES[one.reason])

    if most < count:
        assert [rank(one) for one in found] == sorted(rank(one) for one in every)[:most]
    else:
        assert found == list(known)
    reasons = [one.reason for one in every.values()]
    assert explanation.counts == {reason: reasons.count(reason) for reason in reasons if reason is not None}
    best = route(ASKED, known, 0.0, random.Random(0), TIMINGS, TABLES)
    assert isinstance(best, Chosen) is (None in reasons)


def test_an_explanation_is_of_the_moment_in_which_it_was_made() -> None:
    seen = fleet(12)
    known = listed(*seen)
    explanation = Explanation(ASKED, known, 0.0, TIMINGS, TABLES)
    before = explain(ASKED, known, 0.0, TIMINGS, TABLES)
    for one in seen[:4]:
        known[one.provider_id] = replace(one, slots={MODEL: slot(state="failed")})
    for one in seen[4:8]:
        del known[one.provider_id]
    known["new"] = view("new", slot())
    assert {one: explanation.candidates([one])[0] for one in explanation.nearest(100)} == before
    assert set(explanation.views) == set(before)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_written_is_json_that_every_reader_takes(number: float) -> None:
    for write in (encoded, lambda value: asyncio.run(json_list([value], dict))):
        with pytest.raises(ValueError, match="JSON compliant"):
            write({"logprobs": [number, "\ud83d"]})
    assert json.loads(encoded({"half": "\ud83d"})) == {"half": "\ud83d"}
