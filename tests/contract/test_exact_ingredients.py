"""What exact mode is made of, under a device that rounds by the size of its launches: with everything in place a chat
beside others is the chat alone, bit for bit; take any one part away, and it is not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from provider.backends.mlx.attending import Query
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.ingredients import Ingredients, in_lanes
from provider.backends.mlx.lane_sampling import sample_lane
from provider.backends.mlx.numerics_adversary import NumericsAdversary
from provider.backends.mlx.sampling import Sampler
from provider.exact.packing import Lane
from provider.generation import Sampling
from provider.scheduler.prefilling import Prefilling, to_fit, whole
from tests.fixtures.backend_play import prompt_of
from tests.fixtures.exact_play import Chat, Log, Setting, alone, differing, play
from tests.fixtures.family_models import write_family

ROWS = 8
CHATS = [
    Chat(str(n), prompt_of(length, n), 14, Sampling(temperature=0.8 * (n % 2), seed=n), joins=joins)
    for n, (length, joins) in enumerate([(20, 0), (40, 0), (7, 0), (50, 2), (33, 3)])
]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlxBackend]:
    made = MlxBackend(write_family(tmp_path_factory.mktemp("exact"), "qwen3_5"))
    yield made
    made.close()


@pytest.fixture
def lanes(backend: MlxBackend) -> Ingredients:
    return in_lanes(ROWS, ROWS, backend.aside)


def together(
    backend: MlxBackend, ingredients: Ingredients | None, setting: Setting | None = None
) -> tuple[list[str], Log]:
    """Which chats differ from themselves alone, everything computed with these ingredients under the adversary."""
    adversary = NumericsAdversary()
    backend.decode_in_lanes(ingredients)
    expected = alone(backend, CHATS, adversary)
    answers, log = play(backend, CHATS, setting or Setting(), adversary)
    assert log.widest >= 4
    return differing(answers, expected), log


def test_the_adversary_bites_where_nothing_is_exact(backend: MlxBackend) -> None:
    assert together(backend, None)[0] == [one.id for one in CHATS]


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("banks", ["of a lane", "of one"])
def test_in_lanes_of_any_size_a_chat_is_the_chat_alone(backend: MlxBackend, rows: int, banks: str) -> None:
    assert together(backend, in_lanes(rows, rows if banks == "of a lane" else 1, backend.aside))[0] == []


class AsManyRows:
    """Packing without padding: one launch, on as many rows as there are."""

    def pack(self, widths: Sequence[int]) -> list[Lane]:
        return [Lane([*range(len(widths))], sum(widths))]

    def fit(self, widths: Sequence[int]) -> Sequence[int]:
        return widths


def test_without_padded_lanes_it_is_not(backend: MlxBackend, lanes: Ingredients) -> None:
    assert together(backend, replace(lanes, packing=AsManyRows()))[0] != []


def padded_together(queries: mx.array, asked: Sequence[Query], scale: float) -> list[mx.array]:
    """Attention in one launch, on keys filled up to the longest."""
    seen = [one.seen() for one in asked]
    longest = max(keys.shape[2] for keys, _ in seen)

    def filled(arrays: Sequence[mx.array]) -> mx.array:
        return mx.concatenate([mx.pad(one, [(0, 0), (0, 0), (0, longest - one.shape[2]), (0, 0)]) for one in arrays])

    mask = mx.stack([mx.arange(longest) < keys.shape[2] for keys, _ in seen])[:, None, None]
    keys, values = filled([keys for keys, _ in seen]), filled([values for _, values in seen])
    own = queries[mx.array([one.row for one in asked])]
    flat = own.reshape(len(asked), -1, 1, own.shape[-1])
    outs = mx.fast.scaled_dot_product_attention(flat, keys, values, scale=scale, mask=mask).reshape(own.shape)
    return [outs[row : row + 1] for row in range(len(asked))]


def test_without_attention_per_sequence_it_is_not(backend: MlxBackend, lanes: Ingredients) -> None:
    assert together(backend, replace(lanes, attend=padded_together))[0] != []


def test_without_the_solo_grid_it_is_not(backend: MlxBackend, lanes: Ingredients) -> None:
    cut_to_fit = Prefilling(to_fit, replays=True, waits=True)
    assert together(backend, lanes, Setting(prefilling=cut_to_fit))[0] != []


class KeyedByTurn:
    """Draws by how many draws there have been, not by a token's position."""

    def __init__(self) -> None:
        self._turns = 0

    def __call__(self, logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> mx.array:
        self._turns += 1
        return sample_lane(logits, [(sampler, self._turns) for sampler, _ in draws])


def test_without_keys_by_position_it_is_not(backend: MlxBackend, lanes: Ingredients) -> None:
    different, _ = together(backend, replace(lanes, sample=KeyedByTurn()))
    assert different != []
    greedy = {one.id for one in CHATS if one.sampling.temperature == 0}
    assert not greedy & {*different}


@pytest.mark.parametrize("replays", [True, False])
def test_without_the_replay_of_what_was_dropped_it_is_not(
    backend: MlxBackend, lanes: Ingredients, replays: bool
) -> None:
    setting = Setting(every=9, prefilling=Prefilling(whole, replays=replays, waits=True))
    different, log = together(backend, lanes, setting)
    assert log.recomputes > 0
    assert (different == []) == replays


def test_parked_and_brought_back_it_is_the_chat_alone(backend: MlxBackend, lanes: Ingredients, tmp_path: Path) -> None:
    different, log = together(backend, lanes, Setting(every=9, copies=tmp_path))
    assert (log.parks > 0, log.recomputes) == (True, 0)
    assert different == []
