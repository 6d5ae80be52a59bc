"""The whole engine with a real head and real copies: chats parked by force, in batches and alone, drafting and not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.engine import Engine
from provider.generation import Delta, Event, Finished, GenerationRequest, Notice, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.artifact import inspect_inline_head
from provider.mtp.controller import Depth, FixedDepth
from provider.scheduler.parking import ParkRules
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from tests.fixtures.movers import mlx_lot

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
SAMPLINGS = (Sampling(temperature=0), Sampling(temperature=0.8, seed=7), Sampling(temperature=0, frequency_penalty=0.4))
EVERY, TOKENS = 16, 40


class Played:
    """Chats that all start at once, to their end."""

    def __init__(
        self,
        backend: MlxBackend,
        asked: Sequence[GenerationRequest],
        depth: Depth,
        every: int | None,
        pool: int = 10_000,
    ) -> None:
        self.texts = {one.request_id: "" for one in asked}
        self.notices: dict[str, list[str]] = {one.request_id: [] for one in asked}
        self.ends: dict[str, Finished] = {}
        engine = Engine(Scheduler(Limits(8, 400), Pool(pool), ParkRules(every=every)), backend, TOKENIZER.decode, depth)
        for one in asked:
            self._note(engine.submit(one))
        while engine.busy:
            self._note(engine.step(self._note).events)

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Delta():
                    self.texts[event.request_id] += event.text
                case Notice():
                    self.notices[event.request_id].append(event.kind)
                case Finished():
                    self.ends[event.request_id] = event
                case _:
                    pass


def chats(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=str(n),
            prompt=TOKENIZER.encode(f"Count from {n} to 99." + " 1, 2, 3," * n),
            max_tokens=TOKENS,
            sampling=SAMPLINGS[n % len(SAMPLINGS)],
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def backend() -> Iterator[MlxBackend]:
    made = MlxBackend(BUNDLED_MODEL_DIR)
    made.adopt(inspect_inline_head(BUNDLED_MODEL_DIR))
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(backend: MlxBackend) -> dict[str, str]:
    texts: dict[str, str] = {}
    for one in chats(8):
        texts |= Played(backend, [one], FixedDepth(0), None).texts
    return texts


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_chats_that_are_parked_every_sixteen_tokens_say_what_they_say_alone(
    backend: MlxBackend, alone: dict[str, str], tmp_path: Path, count: int, drafts: int
) -> None:
    backend.park_with(mlx_lot(tmp_path / "park"))
    played = Played(backend, chats(count), FixedDepth(drafts), EVERY)
    assert played.texts == {id: alone[id] for id in played.texts}
    for id, end in played.ends.items():
        assert (end.parks, end.recomputes) == (2, 0)
        assert played.notices[id] == ["preempted", "resumed"] * 2
    assert drafts == 0 or sum(end.accepted for end in played.ends.values()) > 0
    assert list((tmp_path / "park").iterdir()) == []


def test_in_too_little_room_the_state_goes_to_the_disk_and_comes_back(
    backend: MlxBackend, alone: dict[str, str], tmp_path: Path
) -> None:
    backend.park_with(mlx_lot(tmp_path / "park"))
    played = Played(backend, chats(8), FixedDepth(2), None, pool=280)
    assert played.texts == alone
    assert sum(end.parks for end in played.ends.values()) > 0
    assert sum(end.recomputes for end in played.ends.values()) == 0


def test_when_every_save_fails_everybody_is_computed_again_told_so_and_loses_nothing(
    variants: dict[str, Path], tmp_path: Path
) -> None:
    """In float32; of other types the same text is not promised after a recompute."""
    backend = MlxBackend(variants["float32"])
    expected: dict[str, str] = {}
    for one in chats(4):
        expected |= Played(backend, [one], FixedDepth(0), None).texts
    backend.park_with(mlx_lot(tmp_path / "park", fail_every=1))
    played = Played(backend, chats(4), FixedDepth(0), EVERY)
    assert played.texts == expected
    for id, end in played.ends.items():
        assert (end.parks, end.recomputes) == (2, 2)
        assert played.notices[id] == ["preempted", "resumed", "recomputed"] * 2
    assert list((tmp_path / "park").iterdir()) == []
    mx.clear_cache()
    backend.close()
