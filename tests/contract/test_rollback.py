"""Rolling back by captured states against the oracle: a replay of the kept tokens, one by one, from where it stood."""

from pathlib import Path
from random import Random

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from provider.backends.mlx.block_cache import KV_BLOCK_TOKENS, BlockCache
from provider.backends.mlx.hybrid import Hybrid
from provider.backends.mlx.qwen3_5 import Trunk
from tests.fixtures.backend_play import prompt_of
from tests.fixtures.family_models import write_family

FAMILIES = {"dense": "qwen3_5", "experts": "qwen3_5_moe"}


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("rollback"), FAMILIES[request.param])


def loaded(directory: Path) -> Hybrid:
    model, _ = load_model(directory)
    return Hybrid(Trunk(model))


def held(hybrid: Hybrid, id: str) -> list[mx.array]:
    """All that a sequence holds: keys and values up to its length, convolution windows and states."""
    cells = hybrid._cells[id]
    kept = [one[..., : cache.offset, :] for cache in cells.attention for one in cache.arrays]
    row = hybrid._slots.row(hybrid._slots.ids.index(id))
    return kept + [array for one in row for array in (one.conv, one.state)]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_of_a_pass_equals_a_replay_of_the_kept_tokens(directory: Path, seed: int) -> None:
    """Random widths and lengths, sequences that join, leave and go on with other tokens than those rolled back."""
    random = Random(seed)
    captured, replayed = loaded(directory), loaded(directory)
    joining = [f"s{n}" for n in range(6)]
    inside: list[str] = []
    for step in range(14):
        if joining and step % 2 == 0:
            id = joining.pop()
            prompt = prompt_of(random.randint(1, 30), seed * 10 + step)
            for one in (captured, replayed):
                one.open(id)
                mx.eval(one.append(id, prompt))
            inside.append(id)
        elif len(inside) > 2 and step % 5 == 4:
            gone = inside.pop(random.randrange(len(inside)))
            for one in (captured, replayed):
                one.release(gone)
        fed = {id: prompt_of(random.randint(1, 4), random.randrange(10**6)) for id in inside}
        kept = {id: random.randint(1, len(tokens)) for id, tokens in fed.items()}
        order = random.sample(inside, len(inside))
        (done,) = captured.decode(
            order, mx.array([token for id in order for token in fed[id]]), [len(fed[id]) for id in order]
        )
        logits = {}
        begin = 0
        for id, width in zip(done.ids, done.widths, strict=True):
            logits[id] = done.logits[begin : begin + kept[id]]
            begin += width
        if max(done.widths) > 1:
            captured.keep([done], kept)
        replay(replayed, fed, kept, logits)
        for id in inside:
            pairs = zip(held(captured, id), held(replayed, id), strict=True)
            assert all(mx.array_equal(one, other) for one, other in pairs), (step, id)


def replay(hybrid: Hybrid, fed: dict[str, list[int]], kept: dict[str, int], logits: dict[str, mx.array]) -> None:
    """Every sequence takes part in every pass, so one that has no token left at its turn is put back afterwards."""
    for turn in range(max(kept.values())):
        ids = list(fed)
        before = {id: snapshot(hybrid, id) for id in ids if turn >= kept[id]}
        (done,) = hybrid.decode(ids, mx.array([fed[id][min(turn, kept[id] - 1)] for id in ids]), [1] * len(ids))
        for row, id in enumerate(done.ids):
            if id in before:
                restore(hybrid, id, before[id])
            else:
                assert mx.array_equal(done.logits[row], logits[id][turn])


def snapshot(hybrid: Hybrid, id: str) -> tuple[list[int], list[mx.array]]:
    row = hybrid._slots.row(hybrid._slots.ids.index(id))
    arrays = [mx.array(array) for one in row for array in (one.conv, one.state)]
    mx.eval(arrays)
    return [cache.offset for cache in hybrid._cells[id].attention], arrays


def restore(hybrid: Hybrid, id: str, told: tuple[list[int], list[mx.array]]) -> None:
    offsets, arrays = told
    for cache, offset in zip(hybrid._cells[id].attention, offsets, strict=True):
        cache.offset = offset
    row = hybrid._slots.ids.index(id)
    for layer, (conv, state) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        one = hybrid._slots.layer(layer)
        one.conv[row], one.state[row] = conv[0], state[0]


def test_rolling_back_over_a_block_border_gives_the_block_back() -> None:
    cache = BlockCache()
    for length in (KV_BLOCK_TOKENS - 2, 4):
        cache.update_and_fetch(mx.ones((1, 2, length, 8)), mx.ones((1, 2, length, 8)))
    assert [array.shape[2] for array in cache.arrays] == [2 * KV_BLOCK_TOKENS] * 2
    cache.roll_back(KV_BLOCK_TOKENS)
    assert [array.shape[2] for array in cache.arrays] == [2 * KV_BLOCK_TOKENS] * 2  # its next position needs it
    cache.roll_back(KV_BLOCK_TOKENS - 1)
    assert [array.shape[2] for array in cache.arrays] == [KV_BLOCK_TOKENS] * 2
    keys, _ = cache.update_and_fetch(2 * mx.ones((1, 2, 1, 8)), mx.ones((1, 2, 1, 8)))
    assert keys[0, 0, :, 0].tolist() == [1.0] * (KV_BLOCK_TOKENS - 1) + [2.0]
