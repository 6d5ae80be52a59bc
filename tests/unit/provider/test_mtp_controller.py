"""The depth controller on machines whose every depth has a known speed."""

from collections.abc import Callable
from random import Random

import pytest

from provider.mtp.controller import (
    FIRST_HOLD_S,
    HOPELESS_STEPS,
    LONGEST_HOLD_S,
    WINDOW_STEPS,
    DepthController,
    DepthState,
)

Seconds = Callable[[int, int], float]
"""(width, depth) -> of a step."""
ACCEPTED = {0: 1.0, 1: 1.9, 2: 2.6}
"""Tokens that a row gives in a step, by depth."""


def cheap(width: int, depth: int) -> float:
    """Verifying costs next to nothing: the deeper the better."""
    return 0.010 + 0.001 * depth


def dear(width: int, depth: int) -> float:
    """Each position costs as much as the first."""
    return 0.010 * (1 + 1.2 * depth)


def dear_when_wide(width: int, depth: int) -> float:
    return cheap(width, depth) if width < 4 else dear(width, depth)


def only_one(width: int, depth: int) -> float:
    """The second draft is too much."""
    return (0.010, 0.014, 0.024)[depth]


class Machine:
    """Runs steps at the controller's depth, and keeps time and tokens."""

    def __init__(self, seconds: Seconds, most: int = 2) -> None:
        self.controller = DepthController(most)
        self.seconds = seconds
        self.depths: list[int] = []
        self.time = self.tokens = 0.0
        self.noise: Callable[[], float] = lambda: 1.0

    def run(self, width: int, steps: int) -> None:
        for _ in range(steps):
            depth = self.controller.depth(width)
            taken = self.seconds(width, depth) * self.noise()
            given = width * ACCEPTED[depth]
            self.controller.note(width, depth, round(100 * given), taken)
            self.depths.append(depth)
            self.time += taken
            self.tokens += given


@pytest.mark.parametrize(
    ("seconds", "best", "state"),
    [(cheap, 2, DepthState.DRAFTING), (only_one, 1, DepthState.DRAFTING), (dear, 0, DepthState.PARKED)],
)
def test_it_finds_the_depth_that_yields_most(seconds: Seconds, best: int, state: DepthState) -> None:
    machine = Machine(seconds)
    assert (machine.controller.depth(1), machine.controller.state) == (1, DepthState.EXPLORING)
    machine.run(1, 3 * (WINDOW_STEPS + 1))
    assert machine.controller.depth(1) == best
    assert machine.controller.state is state


def test_a_head_of_one_draft_is_asked_for_one() -> None:
    machine = Machine(cheap, most=1)
    machine.run(1, 150)
    assert set(machine.depths) == {0, 1}
    assert machine.controller.depth(1) == 1


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("steps", [256, 4000])
def test_where_drafting_loses_it_stays_within_three_percent_of_plain_decoding(width: int, steps: int) -> None:
    machine = Machine(dear)
    machine.run(width, steps)
    plain = steps * width / (steps * dear(width, 0))
    assert machine.tokens / machine.time >= 0.97 * plain


def test_a_wide_batch_decodes_plainly_until_drafting_has_shown_that_it_pays() -> None:
    machine = Machine(cheap)
    machine.run(8, 3 * (WINDOW_STEPS + 1))
    assert machine.depths[0] == 0
    assert machine.controller.depth(8) == 2


def test_a_depth_that_is_clearly_slower_is_not_tried_to_the_end() -> None:
    machine = Machine(dear)
    machine.run(8, 60)
    assert 0 < machine.depths.count(1) <= HOPELESS_STEPS + 1
    assert machine.depths.count(2) == 0


def test_what_gains_next_to_nothing_is_not_worth_the_risk() -> None:
    machine = Machine(lambda width, depth: (0.010, 0.0185, 0.030)[depth])
    machine.run(8, 60)
    assert machine.controller.state is DepthState.PARKED


def test_widths_are_remembered_and_not_explored_again() -> None:
    machine = Machine(dear_when_wide)
    for width in (1, 8):
        machine.run(width, 60)
    machine.depths.clear()
    for width in (1, 8, 1, 8):
        machine.run(width, 5)
    assert machine.depths == [2] * 5 + [0] * 5 + [2] * 5 + [0] * 5


def test_a_decision_is_tried_again_ever_more_rarely() -> None:
    machine = Machine(dear)
    machine.run(8, int(200 / dear(8, 0)))
    tries = sum(later == 1 and earlier == 0 for earlier, later in zip(machine.depths, machine.depths[1:], strict=False))
    assert 4 <= tries <= 8  # at first, and after 2, 4, 8, 16, 32 and 64 seconds
    assert FIRST_HOLD_S < LONGEST_HOLD_S


def test_it_turns_when_the_machine_does() -> None:
    machine = Machine(dear)
    machine.run(2, 100)
    assert machine.controller.state is DepthState.PARKED
    machine.seconds = cheap
    machine.run(2, 4000)
    assert machine.controller.depth(2) == 2
    machine.seconds = dear
    machine.run(2, 4000)
    assert machine.controller.state is DepthState.PARKED


def test_a_new_request_alone_is_drafted_for_though_drafting_was_parked() -> None:
    machine = Machine(dear)
    machine.run(1, 60)
    assert machine.controller.depth(1) == 0
    machine.controller.joined()
    assert machine.controller.depth(1) == 1
    machine.run(1, 2 * (WINDOW_STEPS + 1))
    assert machine.controller.depth(1) == 0
    machine.run(8, 60)
    machine.controller.joined()
    assert machine.controller.depth(8) == 0


def test_pauses_of_the_machine_are_not_held_against_a_depth() -> None:
    machine, random = Machine(cheap), Random(1)
    machine.noise = lambda: 50.0 if random.random() < 0.2 else 1.0
    machine.run(1, 3 * (WINDOW_STEPS + 1))
    assert machine.controller.depth(1) == 2


def test_steps_of_another_depth_or_width_are_not_counted() -> None:
    controller = DepthController(2)
    controller.depth(1)
    for _ in range(50):
        controller.note(1, 0, 1, 0.001)
        controller.note(2, 1, 1, 0.001)
    assert controller.rates == {}


def test_the_time_it_is_parked_is_counted() -> None:
    machine = Machine(dear)
    machine.run(8, 40)
    parked = machine.controller.parked_s
    assert 0 < parked < machine.time
    machine.run(8, 10)
    assert machine.controller.parked_s == pytest.approx(parked + 10 * dear(8, 0))


def test_the_same_steps_give_the_same_decisions() -> None:
    first, second = Machine(dear_when_wide), Machine(dear_when_wide)
    for machine in (first, second):
        for width in (1, 3, 8, 2, 1, 8):
            machine.run(width, 37)
    assert first.depths == second.depths
