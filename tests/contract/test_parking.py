"""A parked sequence goes on as if it had never been away, on every backend and wherever its state has been."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import mlx.core as mx
import pytest

from provider.backends.base import Backend, BackendFacts, Landing, Row
from provider.backends.mlx.backend import MlxBackend
from provider.backends.sim import SimBackend
from provider.generation import Sampling
from provider.parking.files import BadCopy
from provider.parking.lot import NoRoom, Tiers
from provider.parking.mover import Lane
from tests.fixtures.backend_play import GREEDY, prefill, prompt_of, solo
from tests.fixtures.drafters import RuledDrafter, mostly_right
from tests.fixtures.family_models import write_family
from tests.fixtures.movers import HandMover, mlx_lot

FACTS = BackendFacts("sim", 1024, 4096, 1000, 512, 1000, 256)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
PENALISED = Sampling(temperature=0.7, seed=5, repetition_penalty=1.2, presence_penalty=0.3)
SAMPLINGS = (GREEDY, SAMPLED, PENALISED)
MODELS = ("sim", "qwen3_5", "qwen3_5_bf16", "qwen3_5_moe", "llama", "gpt_oss")
TIERS = {"disk": {"disk_bytes": 2**33}, "ram": {"disk_bytes": 0, "ram_bytes": 2**33}}


def made(model: str, directory: Path, tier: str, drafter: RuledDrafter | None = None) -> Backend:
    if model == "sim":
        return SimBackend(FACTS, tiers=Tiers(**TIERS[tier]))
    family, dtype = ("qwen3_5", mx.bfloat16) if model == "qwen3_5_bf16" else (model, mx.float32)
    backend = MlxBackend(write_family(directory / "model", family, dtype), drafter)
    backend.park_with(mlx_lot(directory / "park", **TIERS[tier]))
    return backend


CASES = [*((model, "disk") for model in MODELS), ("sim", "ram"), ("qwen3_5_bf16", "ram")]


@pytest.fixture(params=CASES, ids="-".join, scope="module")
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    model, tier = request.param
    one = made(model, tmp_path_factory.mktemp("parking"), tier)
    yield one
    one.close()


def landing(backend: Backend, within_s: float = 20.0) -> Landing:
    """The next copy to end."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for one in backend.landings():
            return one
        time.sleep(0.001)
    raise AssertionError("no copy has ended")


def away_and_back(backend: Backend, id: str) -> None:
    backend.park(id)
    saved = landing(backend)
    assert (saved.id, saved.lane, saved.failure) == (id, Lane.SAVE, None)
    backend.restore(id)
    restored = landing(backend)
    assert (restored.id, restored.lane, restored.failure) == (id, Lane.RESTORE, None)
    assert restored.size_bytes == saved.size_bytes > 0


def play(
    backend: Backend,
    prompts: Mapping[str, Sequence[int]],
    sampling: Mapping[str, Sampling],
    count: int,
    parks: Callable[[int, str], bool],
    drafts: int = 0,
) -> dict[str, list[int]]:
    """All together, with rows that are parked and come back between steps, and steps that are begun ahead."""
    got = {id: [prefill(backend, id, prompt, sampling[id])] for id, prompt in prompts.items()}
    step = 0
    while any(len(tokens) < count for tokens in got.values()):
        rows = [
            Row(id, tokens[-1], len(tokens), min(drafts, count - len(tokens) - 1))
            for id, tokens in got.items()
            if len(tokens) < count
        ]
        step += 1
        for row, run in zip(rows, backend.decode(rows, ahead=step % 3 > 0), strict=True):
            got[row.id] += run.tokens
            if len(got[row.id]) >= count:
                backend.release(row.id)
            elif parks(step, row.id):
                away_and_back(backend, row.id)
    return got


PROMPTS = {str(n): prompt_of(length, n) for n, length in enumerate([5, 40, 250])}
SAMPLING = {id: SAMPLINGS[n] for n, id in enumerate(PROMPTS)}


def test_rows_that_leave_and_come_back_at_any_step_draw_the_tokens_they_draw_alone(backend: Backend) -> None:
    expected = {id: solo(backend, prompt, 14, SAMPLING[id]) for id, prompt in PROMPTS.items()}
    random = Random(3)
    got = play(backend, PROMPTS, SAMPLING, 14, lambda step, id: random.random() < 0.4)
    assert got == expected


def test_a_half_read_prompt_is_parked_and_read_on(backend: Backend) -> None:
    prompt = prompt_of(300, seed=4)
    expected = solo(backend, prompt, 5)
    backend.open("a", GREEDY, prompt)
    assert backend.prefill("a", prompt[:128], None) is None
    away_and_back(backend, "a")
    tokens = [backend.prefill("a", prompt[128:], 0)]
    while len(tokens) < 5:
        assert tokens[-1] is not None
        tokens += backend.decode([Row("a", tokens[-1], len(tokens))])[0].tokens
    backend.release("a")
    assert tokens == expected


def test_rows_stay_away_from_steps_while_others_go_on(backend: Backend) -> None:
    """Nobody leaves the batch: a row that has no room for the moment does not step, begun ahead or not."""
    expected = {id: solo(backend, prompt, 12, SAMPLING[id]) for id, prompt in PROMPTS.items()}
    got = {id: [prefill(backend, id, prompt, SAMPLING[id])] for id, prompt in PROMPTS.items()}
    random, step = Random(5), 0
    while any(len(tokens) < 12 for tokens in got.values()):
        open_ids = [id for id, tokens in got.items() if len(tokens) < 12]
        stepping = [id for id in open_ids if random.random() < 0.6] or open_ids[:1]
        rows = [Row(id, got[id][-1], len(got[id])) for id in stepping]
        step += 1
        for row, run in zip(rows, backend.decode(rows, ahead=step % 3 > 0), strict=True):
            got[row.id] += run.tokens
            if len(got[row.id]) == 12:
                backend.release(row.id)
    assert got == expected


def test_a_sequence_released_during_its_copy_leaves_nothing_behind(backend: Backend) -> None:
    before = backend.savable_bytes
    for moment in (Lane.SAVE, Lane.RESTORE, None):
        prefill(backend, "a", prompt_of(20, 1))
        backend.park("a")
        if moment is not Lane.SAVE:
            landing(backend)
        if moment is Lane.RESTORE:
            backend.restore("a")
        backend.release("a")
        if moment is not None:
            landing(backend)
        assert backend.savable_bytes == before
    assert solo(backend, prompt_of(20, 1), 5) == solo(backend, prompt_of(20, 1), 5)


@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_go_on_where_they_were(tmp_path: Path, depth: int) -> None:
    plain = made("qwen3_5", tmp_path, "disk")
    expected = {id: solo(plain, prompt, 20, SAMPLING[id]) for id, prompt in PROMPTS.items()}
    plain.close()
    backend = made("qwen3_5", tmp_path / "drafting", "disk", RuledDrafter(expected, mostly_right))
    random = Random(depth)
    assert play(backend, PROMPTS, SAMPLING, 20, lambda step, id: random.random() < 0.4, depth) == expected
    backend.close()


def test_a_copy_that_has_been_tampered_with_or_is_gone_is_not_taken_for_the_sequence(tmp_path: Path) -> None:
    backend = made("qwen3_5", tmp_path, "disk")
    for harm in (lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x")):
        prefill(backend, "a", prompt_of(20, 1))
        backend.park("a")
        landing(backend)
        (file,) = (tmp_path / "park").iterdir()
        harm(file)
        backend.restore("a")
        failed = landing(backend)
        assert failed.failure is not None
        assert BadCopy.__name__ in failed.failure or "FileNotFoundError" in failed.failure
        assert list((tmp_path / "park").iterdir()) == []
        backend.release("a")
    backend.close()


def test_what_no_tier_takes_is_refused_and_what_fails_is_told(tmp_path: Path) -> None:
    backend = MlxBackend(write_family(tmp_path / "model", "qwen3_5"))
    backend.park_with(mlx_lot(tmp_path / "park", disk_bytes=100))
    prefill(backend, "a", prompt_of(20, 1))
    with pytest.raises(NoRoom):
        backend.park("a")
    backend.release("a")
    backend.park_with(mlx_lot(tmp_path / "park", fail_every=2))
    for number in range(4):
        prefill(backend, "a", prompt_of(20, 1))
        backend.park("a")
        assert (landing(backend).failure is not None) == (number % 2 == 1)
        backend.release("a")
    assert list((tmp_path / "park").iterdir()) == []
    backend.close()


def test_nothing_is_waited_for_while_a_copy_is_under_way(tmp_path: Path) -> None:
    """The mover does nothing until it is told to: the others decode meanwhile, and the room is taken until then."""
    mover = HandMover()
    backend = MlxBackend(write_family(tmp_path / "model", "qwen3_5"))
    backend.park_with(mlx_lot(tmp_path / "park", mover))
    expected = solo(backend, PROMPTS["1"], 10), solo(backend, PROMPTS["2"], 10)
    a, b = [prefill(backend, "a", PROMPTS["1"])], [prefill(backend, "b", PROMPTS["2"])]
    for token, run in zip((a, b), backend.decode([Row("a", a[-1], 1), Row("b", b[-1], 1)], ahead=True), strict=True):
        token += run.tokens
    backend.park("b")
    for lane in Lane:
        while len(a) < (5 if lane is Lane.SAVE else 10):
            a += backend.decode([Row("a", a[-1], len(a))], ahead=True)[0].tokens
        assert backend.landings() == []
        mover.run()
        assert [one.lane for one in backend.landings()] == [lane]
        if lane is Lane.SAVE:
            backend.restore("b")
    backend.release("a")
    while len(b) < 10:
        b += backend.decode([Row("b", b[-1], len(b))], ahead=True)[0].tokens
    assert (a, b) == expected
    backend.close()


def test_a_landed_park_has_given_its_memory_back_and_another_is_admitted_into_it(tmp_path: Path) -> None:
    """Of 50 MB a sequence and more, as measured by the allocator, while a neighbour decodes."""
    large = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 832}
    backend = MlxBackend(write_family(tmp_path / "model", "qwen3_5", **large))
    backend.park_with(mlx_lot(tmp_path / "park"))
    held = {id: [prefill(backend, id, PROMPTS["1"])] for id in "ab"}

    def step(*ids: str) -> int:
        rows = [Row(id, held[id][-1], len(held[id])) for id in ids]
        for row, run in zip(rows, backend.decode(rows), strict=True):
            held[row.id] += run.tokens
        backend.clear_cache()
        return backend.memory().active_bytes

    both = step("a", "b")
    backend.park("a")
    saved = landing(backend)
    assert saved.size_bytes >= 50_000_000
    alone = step("b")
    assert both - alone >= 0.99 * saved.size_bytes
    held["c"] = [prefill(backend, "c", PROMPTS["1"])]
    assert abs(step("b", "c") - both) <= 0.01 * saved.size_bytes
    backend.release("c")
    backend.restore("a")
    landing(backend)
    assert abs(step("a", "b") - both) <= 0.01 * saved.size_bytes
    backend.close()
