"""The parts of exact mode by themselves: banks of recurrent rows, drawing in lanes, the adversary, mlx-lm's own
classes, and the room that padding takes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchGLU

from provider.backends.base import Row
from provider.backends.mlx.aside import STRAIGHT
from provider.backends.mlx.attending import EachAlone, Query
from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.banks import Banks
from provider.backends.mlx.ingredients import in_lanes
from provider.backends.mlx.lane_grid import SORTED_PAIRS, LaneGrid
from provider.backends.mlx.lane_sampling import sample_lane
from provider.backends.mlx.numerics_adversary import NumericsAdversary
from provider.backends.mlx.recurrent import Captured, Recurrent
from provider.backends.mlx.rms_norm import rms_norm
from provider.backends.mlx.sampling import Sampler, sample
from provider.generation import Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.families import FAMILIES
from provider.scheduler.pool import Pool
from tests.contract.test_drafts import SAMPLINGS
from tests.fixtures.backend_play import prefill, prompt_of
from tests.fixtures.exact_play import Chat, Setting, alone, differing, play
from tests.fixtures.family_models import write_family

LAYERS = 2


def marked(value: int) -> list[Recurrent]:
    return [Recurrent(mx.full((1, 3, 4), value), mx.full((1, 2, 2, 2), value + n)) for n in range(LAYERS)]


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_banks_keep_every_sequences_rows_whoever_joins_leaves_or_rests(size: int, seed: int) -> None:
    """Against a dictionary. A pass adds 1 to the rows of who takes part, for each position that counts."""
    random, banks, held = Random(seed), Banks(size), dict[str, int]()
    for turn in range(60):
        choice = random.random()
        if choice < 0.3 or not held:
            held[str(turn)] = turn * 100
            banks.join(str(turn), marked(turn * 100))
        elif choice < 0.5:
            gone = random.choice([*held])
            taken, expected = banks.take(gone), held.pop(gone)
            assert [one.state.flatten().tolist() for one in taken] == [[expected + n] * 8 for n in range(LAYERS)]
        else:
            lengths = {id: random.randint(1, 3) for id in held if random.random() < 0.7}
            if lengths:
                pass_over(banks)
                for bank in banks.banks:
                    bank.keep(lengths)
            held |= {id: held[id] + count for id, count in lengths.items()}
        check_seats(banks, held)


def pass_over(banks: Banks) -> None:
    for bank in banks.banks:
        for one in bank.layers:
            ahead = [one.conv[:, -1:] + t for t in (1, 2, 3)]
            states = [one.state + t for t in (1, 2, 3)]
            one.captured = Captured(mx.concatenate([one.conv, *ahead], axis=1), states)


def check_seats(banks: Banks, held: dict[str, int]) -> None:
    assert len(banks.banks) == -(-len(held) // banks.size)
    assert {*banks.seats} == {*held}
    for id, (bank, row) in banks.seats.items():
        first, second = banks.banks[bank].layers
        assert first.state[row].flatten().tolist() == [held[id]] * 8
        assert second.state[row].flatten().tolist() == [held[id] + 1] * 8
        assert first.conv[row, -1].tolist() == [held[id]] * 4


def test_a_lane_draws_what_its_rows_draw_by_themselves_whatever_lies_beside_them() -> None:
    mx.random.seed(3)
    logits = mx.random.normal((8, 50))
    draws = [(Sampler(SAMPLINGS[n % len(SAMPLINGS)]), 4 + n) for n in range(6)]
    apart = [sample(logits[n : n + 1], [one]).item() for n, one in enumerate(draws)]
    tokens: list[int] = sample_lane(logits, draws).tolist()  # type: ignore[assignment]
    assert tokens[:6] == apart


Kernel = Callable[[mx.array], mx.array]


def linear() -> Kernel:
    mx.random.seed(1)
    return nn.Linear(32, 48)


def quantised() -> Kernel:
    return nn.QuantizedLinear.from_linear(linear(), group_size=32, bits=4)  # type: ignore[arg-type]


def normed() -> Kernel:
    return nn.RMSNorm(32)


def normed_by_lanes() -> Kernel:
    """All rows in one."""
    return lambda x: rms_norm(x, mx.full(32, 1.5), 1e-6, lambda whole: [whole])


def by_experts() -> Kernel:
    """Each row through the first two of eight experts."""
    mx.random.seed(1)
    glu = SwitchGLU(32, 16, 8)
    return lambda x: glu(x, mx.broadcast_to(mx.array([0, 1]), (x.shape[0], 2))).sum(axis=1)


KERNELS = [(make, dtype) for make in (linear, quantised, normed) for dtype in (mx.float32, mx.bfloat16)]


@pytest.mark.parametrize(("make", "dtype"), [*KERNELS, (normed_by_lanes, mx.float32), (by_experts, mx.float32)])
def test_the_adversary_moves_last_bits_by_the_rows_of_a_launch_and_by_nothing_else(
    make: Callable[[], Kernel], dtype: mx.Dtype
) -> None:
    kernel, row = make(), mx.random.normal((1, 32)).astype(dtype)
    if dtype == mx.bfloat16 and isinstance(kernel, nn.Module):
        kernel.set_dtype(dtype)
    others = mx.random.normal((5, 32)).astype(dtype)
    plain = kernel(row)[0]
    with NumericsAdversary():
        of_one = kernel(row)[0]
        of_four = [kernel(mx.concatenate([others[n : n + 3], row]))[-1] for n in range(2)]
        of_five = kernel(mx.concatenate([others[:4], row]))[-1]
    assert mx.array_equal(of_four[0], of_four[1])
    assert not mx.array_equal(of_one, of_four[0])
    assert not mx.array_equal(of_four[0], of_five)
    assert mx.allclose(of_one.astype(mx.float32), plain.astype(mx.float32), rtol=0.05, atol=0.05)
    assert mx.array_equal(kernel(row)[0], plain), "the adversary has gone"


def test_attention_rounds_by_how_many_keys_there_are() -> None:
    mx.random.seed(2)
    queries, keys = mx.random.normal((1, 2, 2, 16)), mx.random.normal((1, 2, 9, 16))
    attend, padded = EachAlone(STRAIGHT), mx.pad(keys[..., :6, :], [(0, 0), (0, 0), (0, 3), (0, 0)])

    def attended(*asked: Query) -> list[mx.array]:
        return attend(queries, asked, 0.25)

    short, long = Query(0, keys[..., :6, :], keys[..., :6, :], 0), Query(0, keys, keys, 3)
    scores = [(queries @ one.swapaxes(-1, -2))[..., :6] for one in (keys[..., :6, :], padded)]
    assert mx.array_equal(*scores)
    with NumericsAdversary():
        moved = [(queries @ one.swapaxes(-1, -2))[..., :6] for one in (keys[..., :6, :], padded)]
        assert not mx.array_equal(*moved)
        assert mx.array_equal(*attended(short, long)), "what lies behind a query is not there"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("width", [24, 80, 128])
def test_a_norm_by_lanes_is_mlx_own_bit_for_bit(dtype: mx.Dtype, width: int) -> None:
    mx.random.seed(3)
    x, weight = (3 * mx.random.normal((6, 4, width))).astype(dtype), mx.random.normal((width,)).astype(dtype)
    for one in (weight, None):
        own = mx.fast.rms_norm(x, one, 1e-6)
        assert mx.array_equal(own, rms_norm(x, one, 1e-6, lambda y: mx.split(y, 3)))
        assert mx.array_equal(own, rms_norm(x, one, 1e-6, lambda y: mx.split(y, 4, axis=1), axis=1))


def test_attention_of_a_query_alone_is_mlx_own_up_to_rounding() -> None:
    mx.random.seed(4)
    queries, keys, values = mx.random.normal((2, 2, 3, 16)), *mx.random.normal((2, 1, 2, 9, 16))
    outs = EachAlone(STRAIGHT)(queries, [Query(1, keys, values, 2)], 0.25)
    own = mx.fast.scaled_dot_product_attention(
        queries[1].reshape(1, 6, 1, 16), keys[..., :7, :], values[..., :7, :], scale=0.25
    )
    assert mx.allclose(outs[0].flatten(), own.flatten(), rtol=1e-5, atol=1e-6)


def test_sorted_experts_round_by_how_many_rows_share_one() -> None:
    mx.random.seed(1)
    glu, x = SwitchGLU(32, 16, 8), mx.random.normal((SORTED_PAIRS, 32))

    def first(companions: int) -> mx.array:
        """The first row, of which so many others have the same expert."""
        experts = mx.array([[0]] * (1 + companions) + [[1]] * (SORTED_PAIRS - 1 - companions))
        return glu(x, experts)[0]

    assert mx.array_equal(first(3), first(9))
    with NumericsAdversary():
        assert not mx.array_equal(first(3), first(9))
        assert mx.array_equal(first(3), first(3))


@pytest.mark.parametrize("family", ["gpt_oss", "gemma3_text", "qwen3_moe"])
def test_mlx_lms_own_classes_are_exact_too(family: str, tmp_path: Path) -> None:
    """Windows, sinks, experts and norms of queries included."""
    backend, adversary = MlxBackend(write_family(tmp_path / "model", family)), NumericsAdversary()
    chats = [
        Chat(str(n), prompt_of(length, n), 12, Sampling(temperature=0.8 * (n % 2), seed=n), joins=n // 2)
        for n, length in enumerate([5, 40, 70, 18, 33])
    ]
    differ = []
    for lanes in (None, in_lanes(8, 1, backend.aside)):
        backend.decode_in_lanes(lanes)
        expected = alone(backend, chats, adversary)
        answers, log = play(backend, chats, Setting(), adversary)
        assert log.widest >= 4
        differ.append(differing(answers, expected))
    again, log = play(backend, chats, Setting(every=5), adversary)
    backend.close()
    assert differ[0] != []
    assert differ[1] == []
    assert log.recomputes > 0
    assert differing(again, expected) == []


def test_every_served_family_takes_rows_of_several_sequences_or_is_given_one_at_a_time(tmp_path: Path) -> None:
    for family in FAMILIES:
        backend = MlxBackend(write_family(tmp_path / family, family))
        grid = backend.grid
        backend.close()
        assert grid.candidates == ([1, 2, 4, 8, 16] if grid.shares else [1]), family
        assert grid.experts_per_token == (2 if "moe" in family or family in ("gpt_oss", "mixtral") else 0), family


@pytest.mark.parametrize(
    ("grid", "candidates"),
    [
        (LaneGrid(True, 0, 0), [1, 2, 4, 8, 16]),
        (LaneGrid(True, 8, 0), [1, 2, 4]),
        (LaneGrid(True, 64, 0), []),
        (LaneGrid(True, 63, 0), [1]),
        (LaneGrid(False, 0, 0), [1]),
        (LaneGrid(True, 0, 2), [4, 8, 16]),
        (LaneGrid(True, 8, 2), [4]),
        (LaneGrid(True, 8, 7), [4]),
    ],
)
def test_the_rows_that_a_lane_may_have(grid: LaneGrid, candidates: list[int]) -> None:
    assert grid.candidates == candidates


@pytest.mark.parametrize("bank_rows", [1, 8])
def test_memory_is_what_the_books_say_padding_included(bank_rows: int) -> None:
    backend = MlxBackend(BUNDLED_MODEL_DIR)
    without, weight_bytes = backend.memory().active_bytes, backend.facts.weight_bytes
    backend.decode_in_lanes(in_lanes(8, bank_rows, backend.aside))
    facts = backend.facts
    assert facts.padding_states == bank_rows - 1
    assert backend.memory().active_bytes - without >= facts.weight_bytes - weight_bytes > 0
    pool = Pool(
        10**6, 10**12, facts.kv_bytes_per_token, facts.state_bytes, facts.block_tokens,
        padding_states=facts.padding_states,
    )  # fmt: skip
    before = backend.memory().active_bytes
    tokens = {str(n): [prefill(backend, str(n), prompt_of(20, n))] for n in range(9)}
    for _ in range(3):
        rows = [Row(id, drawn[-1], len(drawn)) for id, drawn in tokens.items()]
        for row, run in zip(rows, backend.decode(rows), strict=True):
            tokens[row.id] += run.tokens
    held = backend.memory().active_bytes - before
    counted = sum(pool.sequence_bytes(20 + 4) for _ in tokens)
    assert held <= counted + facts.padding_states * facts.state_bytes + 64 * 1024
    assert not replace(pool, bytes=counted + facts.padding_states * facts.state_bytes - 1).holds([24] * 9)
    backend.close()
    assert backend.memory().active_bytes - before < facts.state_bytes


def told(backend: MlxBackend, ids: Sequence[str]) -> dict[str, list[float]]:
    return {id: [one.logprob for one in backend.told(id).logprobs or []] for id in ids}


def test_what_a_token_was_held_likely_does_not_depend_on_who_else_asks() -> None:
    backend, adversary = MlxBackend(BUNDLED_MODEL_DIR), NumericsAdversary()
    backend.decode_in_lanes(in_lanes(8, 8, backend.aside))
    asks = Sampling(temperature=0, logprobs=2)

    def likelihoods(ids: Sequence[str]) -> dict[str, list[float]]:
        with adversary:
            tokens = {id: prefill(backend, id, prompt_of(9, int(id)), asks) for id in ids}
            backend.decode([Row(id, token, 1) for id, token in tokens.items()])
            found = told(backend, ids)
        for id in ids:
            backend.release(id)
        return found

    together = likelihoods(["1", "2", "3"])
    assert together == {id: likelihoods([id])[id] for id in together}
    backend.close()
