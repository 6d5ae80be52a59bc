"""What a decode pass takes on this device, by the rows of its lane."""

import time
from collections.abc import Sequence

from provider.backends.base import Row
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.device import on_the_cpu
from provider.backends.mlx.ingredients import Ingredients, in_lanes
from provider.generation import Sampling

LEAST_ROUNDS = 3
MOST_ROUNDS = 12
LONGEST_S = 3.0
"""From where on no round is begun beyond the least."""
BETTER = 1.02
"""A round in which no time fell by so much has found nothing new."""
STEPS = 3
PROMPT = (0, 1, 2, 3)


def lanes_of(backend: MlxBackend, rows: int) -> Ingredients:
    """On a CPU a launch costs more than the states it computes, so one launch takes a lane's whole recurrence, padding
    and all. A GPU reads and writes every state of a launch, and launches for nearly nothing: one sequence each, and no
    padding is held."""
    return in_lanes(rows, rows if on_the_cpu() else 1, backend.aside)


def pass_seconds(backend: MlxBackend, candidates: Sequence[int]) -> dict[int, float]:
    """The least of some steps of one sequence: all other rows are padding, which takes a device as long. The candidates
    take turns, so that a disturbance meets them all, and go on while one still gets faster: on a busy machine it takes
    more rounds to find the least. Leaves the backend without lanes."""
    seconds = dict.fromkeys(candidates, float("inf"))
    begun = time.monotonic()
    for number in range(MOST_ROUNDS):
        former = dict(seconds)
        for rows in candidates:
            backend.decode_in_lanes(lanes_of(backend, rows))
            seconds[rows] = min(seconds[rows], _step_s(backend))
        settled = all(former[rows] <= BETTER * seconds[rows] for rows in candidates)
        if number + 1 >= LEAST_ROUNDS and (settled or time.monotonic() - begun > LONGEST_S):
            break
    backend.decode_in_lanes(None)
    return seconds


def _step_s(backend: MlxBackend) -> float:
    backend.open("", Sampling(temperature=0), PROMPT)
    try:
        token = backend.prefill("", PROMPT, 0)
        assert token is not None
        taken = []
        for position in range(1, STEPS + 2):
            started = time.perf_counter()
            token = backend.decode([Row("", token, position)])[0].tokens[0]
            taken.append(time.perf_counter() - started)
        return min(taken[1:])  # the first one seats the sequence
    finally:
        backend.release("")
