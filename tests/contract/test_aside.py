"""The second CPU stream: who computes where, and that nobody can tell."""

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.backends.base import Row
from provider.backends.mlx import aside
from provider.backends.mlx.aside import Aside, half
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.sampling import sample
from provider.generation import Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR

LENGTHS = (5, 300, 40, 17)


@given(st.lists(st.integers(0, 5000), max_size=12))
def test_the_halves_differ_by_no_more_than_the_largest_part(sizes: list[int]) -> None:
    away = half(sizes)
    given_away = sum(sizes[i] for i in away)
    assert len(set(away)) == len(away)
    assert abs(sum(sizes) - 2 * given_away) <= max(sizes, default=0)


def test_results_come_in_their_order() -> None:
    assert Aside().halved(lambda i: i * i, [3, 1, 2]) == [0, 1, 4]


def test_what_is_computed_beside_is_the_same_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = logits_of_some_steps()
    monkeypatch.setattr(aside.os, "cpu_count", lambda: 1)
    assert Aside()(lambda: mx.add(1, 1)).item() == 2
    alone = logits_of_some_steps()
    assert len(beside) == len(alone) > len(LENGTHS)
    assert all(mx.array_equal(one, other) for one, other in zip(beside, alone, strict=True))


def logits_of_some_steps() -> list[mx.array]:
    seen: list[mx.array] = []

    def draw(logits: mx.array, draws: object) -> mx.array:
        seen.append(logits)
        return sample(logits, draws)  # type: ignore[arg-type]

    backend = MlxBackend(BUNDLED_MODEL_DIR, draw=draw)
    rows = []
    for number, length in enumerate(LENGTHS):
        prompt = [7 + (number * 31 + place * 17) % 900 for place in range(length)]
        backend.open(str(number), Sampling(temperature=0), prompt)
        token = backend.prefill(str(number), prompt, 0)
        assert token is not None
        rows.append(Row(str(number), token, 1))
    for _ in range(3):
        runs = backend.decode(rows)
        rows = [Row(row.id, run.tokens[-1], row.position + 1) for row, run in zip(rows, runs, strict=True)]
    backend.close()
    return seen
