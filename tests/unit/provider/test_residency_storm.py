"""Random sequences of everything at once, every suspension opened in a random order."""

import logging

import pytest

from tests.soak import examples
from tests.unit.provider.residency_world.storm import Storm
from tests.unit.provider.residency_world.virtual_loop import play

SEEDS = examples(6_000)
PARTS = 4
STEPS = 120


@pytest.mark.parametrize("part", range(PARTS))
def test_memory_is_never_overcommitted_and_everything_comes_to_rest(part: int) -> None:
    logging.disable(logging.CRITICAL)
    try:
        storms = [brave(seed) for seed in range(part, SEEDS, PARTS)]
    finally:
        logging.disable(logging.NOTSET)
    assert sum(storm.came_back for storm in storms) > 0, "no slot has failed"


def brave(seed: int, steps: int = STEPS) -> Storm:
    storms = list[Storm]()

    async def script() -> None:
        storm = Storm(seed)
        storms.append(storm)
        try:
            await storm.run(steps)
        except BaseException as error:
            error.add_note(f"seed {seed}, after:\n" + "\n".join(storm.trace))
            raise

    play(script)
    return storms[0]
