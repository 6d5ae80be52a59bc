"""The whole engine within grammars: drafts, parks, recomputes and neighbours change neither an answer nor what is told
of its probabilities."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import jsonschema
import mlx.core as mx
import numpy as np
import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.building import build
from provider.engine import Engine
from provider.generation import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Sampling,
    TokenLogprob,
)
from provider.grammar.answer import Calls, Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.json_schema import usable
from provider.grammar.rules import grammar_of
from provider.grammar.tool_rules import Markup, ToolSchema
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.mtp.artifact import inspect_inline_head
from provider.mtp.controller import FixedDepth
from provider.pipe import LoadSpec
from provider.scheduler.parking import ParkRules
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from tests.fixtures.deep_head import write_deep_head
from tests.fixtures.drafters import RuledDrafter, right
from tests.fixtures.exact_play import RandomDepth
from tests.fixtures.grammars import GUIDES, TOKENIZER
from tests.fixtures.movers import mlx_lot
from tests.soak import SOAK

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": 20},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["one", "two"]}, "maxItems": 3},
    },
    "required": ["answer", "count", "tags"],
}
VALUE = usable(SCHEMA, "s", check)
LETTERS = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}
SHORT = usable(LETTERS, "s", check)
SUMS = ("What is 3 plus 4?", "What is 20 plus 41?", "What is 7 times 6?")
TOOL = ToolSchema("count", VALUE, frozenset({"answer"}), "n", "p")
GRAMMARS = (
    answer_grammar(Thinking.DONE, VALUE, None, "s", check),
    answer_grammar(Thinking.OFFERED, VALUE, None, "s", check),
    answer_grammar(Thinking.DONE, None, Calls([TOOL], Markup.XML, False, talk=False), "s", check),
    None,
)
SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.8, seed=7),
    Sampling(temperature=0.9, seed=3, top_k=40, top_p=0.9),
    Sampling(temperature=0.7, seed=5, repetition_penalty=1.2, logit_bias={7: 1.5}),
)
ENDS = sorted(TOKENIZER.eos_token_ids)
[THINK_CLOSE] = TOKENIZER.encode("</think>")


def requests(seed: int, count: int = 6) -> list[GenerationRequest]:
    random = Random(seed)
    asked = []
    for number in range(count):
        drawn = random.choice(SAMPLINGS)
        grammar, logprobs = GRAMMARS[number % len(GRAMMARS)], random.choice([None, 0, 3])
        fields = {name: getattr(drawn, name) for name in drawn.__struct_fields__}
        sampling = Sampling(**{**fields, "grammar": grammar, "logprobs": logprobs})
        prompt = TOKENIZER.encode(f"<|im_start|>user\nCount from {number}.<|im_end|>\n<|im_start|>assistant\n")
        asked.append(
            GenerationRequest(
                request_id=str(number), prompt=prompt, max_tokens=60, sampling=sampling, stop_token_ids=ENDS
            )
        )
    return asked


class Played:
    """Requests that come one after the other, to their end."""

    def __init__(
        self,
        backend: MlxBackend,
        asked: Sequence[GenerationRequest],
        depth: FixedDepth | RandomDepth,
        pool: int,
        every: int | None,
    ) -> None:
        self.texts = {one.request_id: "" for one in asked}
        self.logprobs: dict[str, list[TokenLogprob]] = {one.request_id: [] for one in asked}
        self.ends: dict[str, Finished | Failed] = {}
        self.tokens: dict[str, list[int]] = {one.request_id: [] for one in asked}
        self.ended_within_drafts = 0
        """How often `</think>` came in a run of tokens and was not its last."""
        engine = Engine(Scheduler(Limits(6, 400), Pool(pool), ParkRules(every=every)), backend, TOKENIZER.decode, depth)
        waiting, step = list(asked), 0
        while waiting or engine.busy:
            if waiting and step % 2 == 0:
                self._note(engine.submit(waiting.pop(0)))
            self._note(engine.step(self._note).events)
            step += 1

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Delta():
                    assert event.logprobs is None or len(event.logprobs) == len(event.token_ids)
                    self.texts[event.request_id] += event.text
                    self.tokens[event.request_id] += event.token_ids
                    self.ended_within_drafts += THINK_CLOSE in event.token_ids[:-1]
                    self.logprobs[event.request_id] += event.logprobs or []
                case Finished() | Failed():
                    self.ends[event.request_id] = event
                case _:
                    pass

    def told(self, id: str) -> tuple[str, list[TokenLogprob], str, int]:
        end = self.ends[id]
        assert isinstance(end, Finished)
        return self.texts[id], self.logprobs[id], end.reason, end.completion_tokens


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deep_head(tmp_path_factory.mktemp("guided"))


@pytest.fixture(scope="module")
def backend(directory: Path) -> Iterator[MlxBackend]:
    made = MlxBackend(directory)
    made.adopt(inspect_inline_head(directory))
    assert made.facts.max_drafts == 3
    made.guide_with(GUIDES.guide)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
def test_drafts_parks_and_neighbours_change_neither_answers_nor_probabilities(
    backend: MlxBackend, tmp_path: Path, seed: int
) -> None:
    asked = requests(seed)
    backend.park_with(mlx_lot(tmp_path / "park"))
    alone = [Played(backend, [one], FixedDepth(0), 10_000, None) for one in asked]
    crowded = Played(backend, asked, RandomDepth(seed, backend.facts.max_drafts), 300, every=16)
    for one, by_itself in zip(asked, alone, strict=True):
        assert crowded.told(one.request_id) == by_itself.told(one.request_id)
    ends = [end for end in crowded.ends.values() if isinstance(end, Finished)]
    assert sum(end.parks for end in ends) > 4
    assert sum(end.accepted for end in ends) > 10
    for one in asked:
        text, logprobs, reason, _ = crowded.told(one.request_id)
        assert (len(logprobs) > 0) == (one.sampling.logprobs is not None)
        if one.sampling.grammar in GRAMMARS[:2] and reason == "stop":
            jsonschema.validate(json.loads(text.partition("</think>")[2] or text), SCHEMA)


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_thinking_that_ends_within_accepted_drafts_is_followed_by_the_value_alone(
    backend: MlxBackend, directory: Path, drafts: int
) -> None:
    """Evidence N. The answers are those without drafts, which end their thinking token by token."""
    grammar = answer_grammar(Thinking.BEGUN, SHORT, None, "s", check)
    asked = [
        GenerationRequest(
            request_id=str(seed),
            prompt=TOKENIZER.encode(f"<|im_start|>user\n{SUMS[seed % 3]}<|im_end|>\n<|im_start|>assistant\n<think>\n"),
            max_tokens=60,
            sampling=Sampling(temperature=0.6, seed=seed, grammar=grammar),
            stop_token_ids=ENDS,
        )
        for seed in range(6)
    ]
    plainly = Played(backend, asked, FixedDepth(0), 10_000, None)
    truths = {id: [*tokens, ENDS[0]] for id, tokens in plainly.tokens.items()}
    backend.draft_with(RuledDrafter(truths, right))
    played = Played(backend, asked, FixedDepth(drafts), 10_000, None)
    backend.adopt(inspect_inline_head(directory))
    assert played.texts == plainly.texts
    for text in played.texts.values():
        thought, _, value = text.partition("</think>")
        assert "{" not in thought
        jsonschema.validate(json.loads(value), LETTERS)
    assert played.ended_within_drafts > 0


def test_after_a_recompute_the_text_goes_on_within_its_grammar(backend: MlxBackend, tmp_path: Path) -> None:
    asked = [one for one in requests(3, 2) if one.sampling.grammar in GRAMMARS[:2]]
    backend.park_with(mlx_lot(tmp_path / "park", fail_every=1))
    played = Played(backend, asked, FixedDepth(2), 10_000, every=7)
    for one in asked:
        end = played.ends[one.request_id]
        assert isinstance(end, Finished)
        assert end.recomputes > 0
        if end.reason == "stop":
            text = played.texts[one.request_id]
            jsonschema.validate(json.loads(text.partition("</think>")[2] or text), SCHEMA)


def test_a_grammar_that_fails_midway_ends_its_own_request_alone(backend: MlxBackend) -> None:
    hard = grammar_of("start: @value", {"value": {"type": "string", "pattern": "^(a?){1000}a{1000}$"}})
    others = requests(1, 2)
    broken = GenerationRequest(
        request_id="hard", prompt=[5, 6, 7], max_tokens=50, sampling=Sampling(grammar=hard), stop_token_ids=ENDS
    )
    played = Played(backend, [broken, *others], FixedDepth(1), 10_000, None)
    failed = played.ends["hard"]
    assert isinstance(failed, Failed)
    assert (failed.failure.status, failed.failure.code) == (400, "grammar_failed")
    for one in others:
        alone = Played(backend, [one], FixedDepth(0), 10_000, None)
        assert played.told(one.request_id) == alone.told(one.request_id)


def test_a_simulated_model_follows_grammars_too() -> None:
    engine, _ = build(LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=2))
    sampling = Sampling(grammar=GRAMMARS[0], logprobs=1)
    asked = GenerationRequest(request_id="x", prompt=[5, 6], max_tokens=300, sampling=sampling, stop_token_ids=ENDS)
    events = engine.submit(asked)
    while engine.busy:
        events += engine.step(events.extend).events
    text = "".join(event.text for event in events if isinstance(event, Delta))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert [event.reason for event in events if isinstance(event, Finished)] == ["stop"]


def test_probabilities_are_the_models_own_whatever_the_sampling() -> None:
    backend = MlxBackend(BUNDLED_MODEL_DIR)
    backend.guide_with(GUIDES.guide)
    prompt = TOKENIZER.encode("<|im_start|>user\nWhat is 3 plus 4?<|im_end|>\n<|im_start|>assistant\n")
    sampling = Sampling(temperature=0.3, top_k=2, logit_bias={5: 9.0}, grammar=GRAMMARS[0], logprobs=20)
    backend.open("x", sampling, prompt)
    token = backend.prefill("x", prompt, 0)
    assert token is not None
    told = backend.told("x").logprobs
    assert told is not None
    logits = _raw_logits(prompt)
    logprobs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    [one] = told
    assert one.logprob == pytest.approx(logprobs[token], abs=1e-3)
    assert [value for _, value in one.top] == pytest.approx(np.sort(logprobs)[::-1][:20], abs=1e-3)
    assert all(value == pytest.approx(logprobs[likely], abs=1e-3) for likely, value in one.top)
    backend.close()


def _raw_logits(prompt: Sequence[int]) -> np.ndarray:
    """By a backend that is asked for nothing else: what its sampler was given."""
    seen: list[mx.array] = []

    def keeps(logits: mx.array, draws: Sequence[object]) -> mx.array:
        seen.append(logits)
        return mx.argmax(logits, axis=-1).astype(mx.int32)

    plain = MlxBackend(BUNDLED_MODEL_DIR, draw=keeps)
    plain.open("x", Sampling(), prompt)
    plain.prefill("x", prompt, 0)
    plain.close()
    return np.array(seen[0][0].astype(mx.float32))
