"""The engine over the tensor-free backend: text, ends, failures, cancels, and independence of neighbours."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.backends.base import BackendFacts, Row, Run
from provider.backends.sim import SimBackend
from provider.engine import Engine
from provider.generation import Delta, Event, Failed, Finished, GenerationRequest, Notice, Reading, Sampling
from provider.mtp.controller import Depth, FixedDepth
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler
from provider.text import Decode
from tests.soak import examples

FACTS = BackendFacts("sim", 64, 512, 1000, 2, 10, 16, max_drafts=7)


def letters(ids: Sequence[int], skip_special: bool) -> str:
    """A tokenizer of one letter per token."""
    return "".join(chr(ord("0") + id) for id in ids)


class Engines:
    """An engine and what its requests have got so far."""

    def __init__(
        self,
        backend: SimBackend | None = None,
        tokens: int = 10_000,
        depth: Depth | None = None,
        decode: Decode = letters,
        **limits: Any,
    ) -> None:
        told = {"max_concurrent": 8, "n_ctx": 512, **limits}
        self.backend = backend or SimBackend(FACTS)
        self.engine = Engine(Scheduler(Limits(**told), Pool(tokens)), self.backend, decode, depth)
        self.events: dict[str, list[Event]] = {}

    def submit(self, id: str, prompt: Sequence[int] = (1, 2, 3), **fields: Any) -> None:
        told = {"max_tokens": 10, "sampling": Sampling(temperature=0), **fields}
        self.note(self.engine.submit(GenerationRequest(request_id=id, prompt=list(prompt), **told)))

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            self.events.setdefault(event.request_id, []).append(event)

    def step(self) -> None:
        self.note(self.engine.step(self.note).events)

    def run(self) -> "Engines":
        for _ in range(5000):
            if not self.engine.busy:
                return self
            self.step()
        raise AssertionError("no end in sight")

    def text(self, id: str) -> str:
        return "".join(event.text for event in self.events[id] if isinstance(event, Delta))

    def tokens(self, id: str) -> list[int]:
        return [token for event in self.events[id] if isinstance(event, Delta) for token in event.token_ids]

    def end(self, id: str) -> Event:
        return self.events[id][-1]


def alone(prompt: Sequence[int] = (1, 2, 3), drafts: int = 0, acceptance: float = 0.7, **fields: Any) -> Engines:
    engines = Engines(SimBackend(FACTS, acceptance=acceptance), depth=FixedDepth(drafts))
    engines.submit("a", prompt, **fields)
    return engines.run()


def test_a_request_ends_at_its_length_with_its_counts() -> None:
    engines = alone(max_tokens=7)
    assert engines.end("a") == Finished("a", "length", 3, 7)
    assert len(engines.tokens("a")) == 7
    assert engines.text("a") == letters(engines.tokens("a"), True)


def test_a_stop_token_ends_it_and_is_counted_but_not_shown() -> None:
    whole = alone(max_tokens=10)
    fifth = whole.tokens("a")[4]
    first = whole.tokens("a").index(fifth)
    engines = alone(max_tokens=10, stop_token_ids=[fifth])
    assert engines.end("a") == Finished("a", "stop", 3, first + 1)
    assert engines.text("a") == whole.text("a")[:first]


def test_a_stop_string_ends_it_and_none_of_it_is_shown() -> None:
    whole = alone(max_tokens=10).text("a")
    engines = alone(max_tokens=10, stop=[whole[4:7]])
    at = whole.index(whole[4:7])
    assert engines.text("a") == whole[:at]
    assert engines.end("a") == Finished("a", "stop", 3, at + 3, stop=whole[4:7])


def test_a_stop_string_that_is_begun_and_not_completed_is_shown() -> None:
    whole = alone(max_tokens=10).text("a")
    assert alone(max_tokens=10, stop=[whole[8:10] + "!"]).text("a") == whole


@pytest.mark.parametrize("drafts", [0, 5])
def test_a_chat_goes_on_past_a_stop_string_in_its_thought(drafts: int) -> None:
    whole = alone(max_tokens=10).text("a")
    engines = alone(max_tokens=10, drafts=drafts, stop=[whole[4]], reading=Reading(thinking=True, calls=False))
    assert engines.text("a") == whole
    assert isinstance(end := engines.end("a"), Finished)
    assert (end.reason, end.completion_tokens, end.stop) == ("length", 10, None)


@pytest.mark.parametrize("drafts", [0, 5])
def test_a_stop_string_that_the_limit_makes_certain_ends_the_answer(drafts: int) -> None:
    """The line break might have been of a call."""
    tokens = alone(max_tokens=10).tokens("a")
    length = next(count for count in range(10, 1, -1) if tokens[count - 1] not in tokens[: count - 1])

    def lines(ids: Sequence[int], skip_special: bool) -> str:
        return "".join("\n" if id == tokens[length - 1] else "a" for id in ids)

    engines = Engines(depth=FixedDepth(drafts), decode=lines)
    engines.submit("a", max_tokens=length, stop=["\n"], reading=Reading(thinking=False, calls=True))
    assert engines.run().text("a") == "a" * (length - 1)
    assert isinstance(end := engines.end("a"), Finished)
    assert (end.reason, end.completion_tokens, end.stop) == ("stop", length, "\n")


def test_max_tokens_one_gives_one_token() -> None:
    assert alone(max_tokens=1).end("a") == Finished("a", "length", 3, 1)


@pytest.mark.parametrize(("prompt", "code"), [([], "invalid_value"), ([1] * 512, "context_length_exceeded")])
def test_a_prompt_that_can_never_run_is_refused_at_once(prompt: list[int], code: str) -> None:
    engines = Engines()
    engines.submit("a", prompt)
    end = engines.end("a")
    assert isinstance(end, Failed)
    assert end.failure.code == code
    assert not engines.engine.busy


def test_a_chat_that_outgrows_its_context_ends_with_a_typed_error_after_its_text() -> None:
    engines = alone([1] * 500, max_tokens=100)
    end = engines.end("a")
    assert isinstance(end, Failed)
    assert end.failure.type == "exceed_context_size_error"
    assert end.failure.detail == {"n_prompt_tokens": 500, "n_ctx": 512}
    assert len(engines.tokens("a")) == 12


def test_a_chat_without_max_tokens_ends_with_length_where_the_context_ends() -> None:
    assert alone([1] * 500, max_tokens=None).end("a") == Finished("a", "length", 500, 12)


ENDS: dict[str, dict[str, Any]] = {
    "length": {"max_tokens": 10},
    "one token": {"max_tokens": 1},
    "a stop token": {"max_tokens": 30, "stop_at": 4},
    "a stop string": {"max_tokens": 30, "stop": (5, 7)},
    "a stop string of one token": {"max_tokens": 30, "stop": (6, 7)},
    "both, the token first": {"max_tokens": 30, "stop_at": 5, "stop": (6, 8)},
    "both, the string first": {"max_tokens": 30, "stop_at": 8, "stop": (4, 6)},
    "the context": {"max_tokens": None, "prompt": [1] * 500},
    "outgrowing the context": {"max_tokens": 30, "prompt": [1] * 500},
}
"""`stop_at` and `stop`: places in the answer, whose token and whose text become stops."""


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_inside_a_run_of_drafts_gives_what_it_gives_without(end: str, acceptance: float, drafts: int) -> None:
    told = dict(ENDS[end])
    whole = alone(told.get("prompt", (1, 2, 3)), max_tokens=12)
    if "stop_at" in told:
        told["stop_token_ids"] = [whole.tokens("a")[told.pop("stop_at")]]
    if "stop" in told:
        told["stop"] = [whole.text("a")[slice(*told["stop"])]]
    plain, drafted = alone(**told), alone(drafts=drafts, acceptance=acceptance, **told)
    assert (drafted.text("a"), drafted.tokens("a")) == (plain.text("a"), plain.tokens("a"))
    ended, expected = drafted.end("a"), plain.end("a")
    if not isinstance(ended, Finished):
        assert ended == expected
        return
    assert msgspec.structs.replace(ended, accepted=0, rejected=0) == expected
    assert ended.accepted <= ended.completion_tokens
    if acceptance == 0.0:
        assert ended.accepted == 0


def test_drafts_behind_a_stop_count_as_rejected() -> None:
    fourth = alone().tokens("a")[3]
    assert alone().tokens("a").index(fourth) == 3
    engines = alone(drafts=7, acceptance=1.0, stop_token_ids=[fourth], max_tokens=30)
    assert engines.end("a") == Finished("a", "stop", 3, 4, accepted=3, rejected=4)
    tally = engines.engine.tally
    assert (tally.rounds, tally.drafted, tally.accepted) == (1, [1] * 7, [1] * 7)


def test_accepted_drafts_make_an_answer_take_fewer_steps() -> None:
    plain, drafted = Engines(), Engines(SimBackend(FACTS, acceptance=1.0), depth=FixedDepth(3))
    steps = []
    for engines in (plain, drafted):
        engines.submit("a", max_tokens=41)
        steps.append(0)
        while engines.engine.busy:
            engines.step()
            steps[-1] += 1
    assert drafted.tokens("a") == plain.tokens("a")
    assert steps == [41, 11]


class Measured:
    """Implements Depth: wants one draft, and writes down what it is told."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, int, int, float]] = []
        self.entered = 0

    def depth(self, width: int) -> int:
        return 1

    def joined(self) -> None:
        self.entered += 1

    def note(self, width: int, depth: int, tokens: int, seconds: float) -> None:
        self.notes.append((width, depth, tokens, seconds))


def test_only_steps_that_follow_a_step_of_pure_decoding_are_measured() -> None:
    ticks, depth = count(), Measured()
    backend = SimBackend(FACTS, acceptance=1.0)
    scheduler = Scheduler(Limits(8, 512), Pool(10_000))
    engine = Engine(scheduler, backend, letters, depth, now=lambda: float(next(ticks)))
    for id in "ab":
        engine.submit(GenerationRequest(request_id=id, prompt=[1, 2], max_tokens=12, sampling=Sampling(temperature=0)))
    for _ in range(4):
        engine.step(lambda events: None)
    assert depth.notes == [(2, 1, 4, 3.0)] * 2  # not the prefill, nor the first step behind it; a step looks thrice
    engine.submit(GenerationRequest(request_id="c", prompt=[3], max_tokens=9, sampling=Sampling(temperature=0)))
    for _ in range(3):
        engine.step(lambda events: None)
    assert depth.notes[2:] == [(3, 1, 4, 3.0)]  # a and b had one token left to draw
    assert depth.entered == 2


class Failing(SimBackend):
    """Raises in the parts it is told to."""

    def __init__(self) -> None:
        super().__init__(FACTS)
        self.fail_prefill_of: str | None = None
        self.fail_decode = False
        self.fail_open_of: str | None = None

    def open(self, id: str, *arguments: Any, **more: Any) -> None:
        if id == self.fail_open_of:
            raise MemoryError("no room")
        super().open(id, *arguments, **more)

    def prefill(self, id: str, tokens: Sequence[int], position: int | None) -> int | None:
        if id == self.fail_prefill_of:
            raise RuntimeError("prefill broke")
        return super().prefill(id, tokens, position)

    def decode(self, rows: Sequence[Row], ahead: bool = False) -> list[Run]:
        if self.fail_decode:
            self.fail_decode = False
            raise RuntimeError("decode broke")
        return super().decode(rows, ahead)


def test_an_exception_in_a_prefill_ends_that_request_alone() -> None:
    backend = Failing()
    backend.fail_prefill_of = "bad"
    engines = Engines(backend)
    for id in ("a", "bad", "b"):
        engines.submit(id)
    engines.run()
    end = engines.end("bad")
    assert isinstance(end, Failed)
    assert end.failure.code == "engine_error"
    assert engines.tokens("a") == engines.tokens("b") == alone().tokens("a")
    assert not backend._held


def test_an_exception_in_a_decode_ends_its_rows_and_the_engine_goes_on() -> None:
    backend = Failing()
    engines = Engines(backend, chunk_tokens=16)
    engines.submit("a")
    engines.submit("b")
    engines.step()
    engines.submit("later", [5] * 40)
    backend.fail_decode = True
    engines.step()
    assert isinstance(engines.end("a"), Failed)
    assert isinstance(engines.end("b"), Failed)
    engines.run()
    assert engines.end("later") == Finished("later", "length", 40, 10)
    assert engines.tokens("later") == alone([5] * 40).tokens("a")
    assert not backend._held


def test_a_sequence_that_cannot_be_opened_ends_and_leaves_nothing() -> None:
    backend = Failing()
    backend.fail_open_of = "bad"
    engines = Engines(backend)
    engines.submit("bad")
    engines.run()
    assert isinstance(engines.end("bad"), Failed)
    engines.submit("good")
    engines.run()
    assert isinstance(engines.end("good"), Finished)


def test_two_chats_that_outgrow_the_pool_both_finish_with_the_text_they_get_alone() -> None:
    engines = Engines(tokens=120)
    engines.submit("a", [1] * 50, max_tokens=40)
    engines.submit("b", [2] * 50, max_tokens=40)
    engines.run()
    assert engines.tokens("a") == alone([1] * 50, max_tokens=40).tokens("a")
    assert engines.tokens("b") == alone([2] * 50, max_tokens=40).tokens("a")
    assert engines.end("b") == Finished("b", "length", 50, 40, parks=1, recomputes=1)
    kinds = [event.kind for event in engines.events["b"] if isinstance(event, Notice)]
    assert kinds == ["preempted", "resumed", "recomputed"]


CHAT = st.tuples(
    st.lists(st.integers(0, 63), min_size=1, max_size=120),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.8]),
    st.integers(0, 30),
    st.none() | st.integers(0, 60),
)


@settings(max_examples=examples(10_000), deadline=None)
@given(
    chats=st.lists(CHAT, min_size=1, max_size=8),
    tokens=st.integers(170, 600),
    chunk=st.integers(16, 100),
    concurrent=st.integers(1, 8),
    drafts=st.integers(0, 4),
)
def test_in_any_company_each_chat_gets_the_tokens_it_gets_alone(
    chats: list[Any], tokens: int, chunk: int, concurrent: int, drafts: int
) -> None:
    depth = FixedDepth(drafts)
    engines = Engines(tokens=tokens, depth=depth, n_ctx=170, chunk_tokens=chunk, max_concurrent=concurrent)
    step = 0
    while engines.engine.busy or step <= 60:
        for number, (prompt, length, temperature, joins, leaves) in enumerate(chats):
            if step == joins:
                sampling = Sampling(temperature=temperature, seed=number)
                engines.submit(str(number), prompt, max_tokens=length, sampling=sampling)
            if leaves is not None and step == joins + leaves + 1:
                engines.engine.cancel(str(number))
        engines.step()
        step += 1
    for number, (prompt, length, temperature, _, leaves) in enumerate(chats):
        solo = alone(prompt, max_tokens=length, sampling=Sampling(temperature=temperature, seed=number))
        got = engines.tokens(str(number)) if str(number) in engines.events else []
        assert got == solo.tokens("a")[: len(got)]
        if leaves is None:
            assert got == solo.tokens("a")
    assert not engines.backend._held


def test_cancel_frees_in_every_state() -> None:
    engines = Engines(tokens=120, max_concurrent=2, chunk_tokens=16)
    engines.submit("running", [1] * 10, max_tokens=100)
    engines.step()
    engines.submit("prefill", [2] * 60)
    engines.submit("waiting", [3] * 10)
    engines.step()
    states = {one.id: one.state.value for one in engines.engine.scheduler.states()}
    assert states == {"running": "running", "prefill": "prefill", "waiting": "waiting"}
    for id in states:
        engines.engine.cancel(id)
        engines.engine.cancel(id)
    assert not engines.engine.busy
    assert engines.engine.scheduler.open == 0
    assert not engines.backend._held


def test_a_parked_sequence_can_be_cancelled() -> None:
    engines = Engines(tokens=120)
    engines.submit("a", [1] * 50, max_tokens=40)
    engines.submit("b", [2] * 50, max_tokens=40)
    while engines.engine.scheduler.counts().parked == 0:
        engines.step()
    engines.engine.cancel("b")
    engines.run()
    assert isinstance(engines.end("a"), Finished)


def test_the_same_id_twice_is_refused_and_the_first_is_untouched() -> None:
    engines = Engines()
    engines.submit("a")
    assert isinstance(
        engines.engine.submit(
            GenerationRequest(request_id="a", prompt=[1], max_tokens=1, sampling=Sampling(temperature=0))
        )[0],
        Failed,
    )
    engines.run()
    assert engines.tokens("a") == alone().tokens("a")
