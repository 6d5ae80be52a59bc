"""The whole engine with a real head and too little room: parks, joins, cancels, stops and changing depths at once."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import mlx.core as mx
import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.engine import Engine
from provider.generation import Delta, Event, Finished, GenerationRequest
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.artifact import inspect_inline_head
from provider.mtp.controller import Depth, FixedDepth
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from tests.contract.test_drafts import SAMPLINGS
from tests.fixtures.exact_play import RandomDepth
from tests.fixtures.family_models import write_family
from tests.fixtures.head_models import add_head

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
WORDS = ("1, 2, 3, 4, 5,", "one two one two", "Count from 7 to 30.", "a b c a b c a b", "The cat sat on the mat.")


def requests(seed: int) -> list[GenerationRequest]:
    random = Random(seed)
    return [
        GenerationRequest(
            request_id=str(number),
            prompt=TOKENIZER.encode(random.choice(WORDS) * random.randint(1, 3)),
            max_tokens=random.randint(1, 45),
            sampling=random.choice(SAMPLINGS),
            stop=random.choice([[], [], ["9"], ["t ", "12"]]),
            stop_token_ids=random.choice([[], sorted(TOKENIZER.eos_token_ids)]),
        )
        for number in range(9)
    ]


def play(
    backend: MlxBackend, asked: Sequence[GenerationRequest], depth: Depth, tokens: int, cancelled: str | None = None
) -> dict[str, tuple[str, Finished]]:
    """A request joins at every other step; one is cancelled on the way. Text and end of the others."""
    engine = Engine(Scheduler(Limits(6, 400), Pool(tokens)), backend, TOKENIZER.decode, depth)
    waiting, step = list(asked), 0
    texts, ends = dict.fromkeys([one.request_id for one in asked], ""), dict[str, Finished]()

    def note(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Delta):
                texts[event.request_id] += event.text
            elif isinstance(event, Finished):
                ends[event.request_id] = event

    while waiting or engine.busy:
        if waiting and step % 2 == 0:
            note(engine.submit(waiting.pop(0)))
        note(engine.step(note).events)
        step += 1
        if step == 12 and cancelled is not None:
            engine.cancel(cancelled)
    return {id: (texts[id], end) for id, end in ends.items()}


@pytest.fixture(scope="module", params=["demo", "random"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MlxBackend:
    """Both in bfloat16, which the CPU computes again as it was computed first."""
    if request.param == "demo":
        directory: Path = BUNDLED_MODEL_DIR
    else:
        directory = add_head(write_family(tmp_path_factory.mktemp("engine"), "qwen3_5", mx.bfloat16), mx.bfloat16)
    made = MlxBackend(directory)
    made.adopt(inspect_inline_head(directory))
    return made


@pytest.mark.parametrize("seed", range(2))
def test_in_too_little_room_every_answer_is_the_one_it_gets_alone_without_drafts(
    backend: MlxBackend, seed: int
) -> None:
    asked = requests(seed)
    alone = {id: told for one in asked for id, told in play(backend, [one], FixedDepth(0), 10_000).items()}
    crowded = play(backend, asked, RandomDepth(seed, backend.facts.max_drafts), 120, cancelled="3")
    assert set(alone) - set(crowded) <= {"3"}
    assert sum(end.parks for _, end in crowded.values()) > 0
    assert sum(end.accepted + end.rejected for _, end in crowded.values()) > 50
    for id, (text, end) in crowded.items():
        expected, plainly = alone[id]
        assert text == expected
        assert (end.reason, end.prompt_tokens, end.completion_tokens) == (
            plainly.reason,
            plainly.prompt_tokens,
            plainly.completion_tokens,
        )
    assert not backend._samplers
