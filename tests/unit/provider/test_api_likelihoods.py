"""Probabilities are told with the text they belong to: the same ones at every split of the tokens."""

from collections.abc import Sequence

import pytest

from provider.api.likelihoods import LEAST, CompletionLikelihoods, Likelihoods
from provider.generation import Delta, TokenLogprob
from provider.text import TextStream
from tests.fixtures.grammars import TOKENIZER


def deltas(text: str, run: int, stop: Sequence[str] = ()) -> list[Delta]:
    """As an engine tells `text`, `run` tokens at a time; the n-th token has the probability -n."""
    stream, ids, told = TextStream(TOKENIZER.decode, stop), TOKENIZER.encode(text), list[Delta]()
    for start in range(0, len(ids), run):
        pushed = stream.push(ids[start : start + run])
        kept = ids[start : start + run][: pushed.stopped_at]
        logprobs = [TokenLogprob(-float(start + place), [(one, -0.5)]) for place, one in enumerate(kept)]
        told.append(Delta("r", kept, pushed.text, logprobs))
        if pushed.stopped_at is not None:
            return told
    return [*told, Delta("r", [], stream.finish(), [])]


def spoken(text: str, run: int, thought: int = 0, stop: Sequence[str] = ()) -> list[tuple[str, float]]:
    likelihoods, said = Likelihoods(TOKENIZER, True, bool(stop)), []
    for delta in deltas(text, run, stop):
        likelihoods.hear(delta)
        said += likelihoods.take(thought)
    said += likelihoods.finish(thought)
    return [(one["token"], one["logprob"]) for one in likelihoods.chat(said)]


@pytest.mark.parametrize("run", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize("text", ["The capital of France is Paris.", "日本 and ä", 'a\n\n{"b": 1}', " x"])
def test_every_token_is_told_once_whatever_the_split(text: str, run: int) -> None:
    ids = TOKENIZER.encode(text)
    assert [logprob for _, logprob in spoken(text, run)] == [-float(place) for place in range(len(ids))]


def test_half_a_character_is_told_by_its_bytes() -> None:
    likelihoods = Likelihoods(TOKENIZER, True, False)
    for delta in deltas("日", 1):
        likelihoods.hear(delta)
    told = likelihoods.chat(likelihoods.finish())
    assert len(told) > 1
    assert b"".join(bytes(one["bytes"]) for one in told).decode() == "日"


@pytest.mark.parametrize("run", [1, 2, 3, 5, 8, 100])
def test_what_a_stop_string_takes_back_is_not_told(run: int) -> None:
    said = spoken("One, two, three, four.", run, stop=["three"])
    assert "".join(token for token, _ in said).rstrip(" th") == "One, two,"


@pytest.mark.parametrize("run", [1, 2, 3, 100])
def test_neither_thinking_nor_the_blank_lines_behind_it_are_told(run: int) -> None:
    thought = len(TOKENIZER.encode("<think>\nHm.\n</think>"))
    said = spoken("<think>\nHm.\n</think>\n\nYes.", run, thought)
    assert "".join(token for token, _ in said) == "Yes."


def test_a_completion_tells_where_its_tokens_begin_and_no_infinity() -> None:
    likelihoods = CompletionLikelihoods(TOKENIZER, True, False)
    ids = TOKENIZER.encode("ä b c")
    text = TOKENIZER.decode(ids)
    told = likelihoods.hear(Delta("r", ids, text, [TokenLogprob(float("-inf"), []) for _ in ids]))
    assert likelihoods.finish()["tokens"] == []
    assert likelihoods.whole() == told
    assert told["text_offset"][0] == 0
    assert [text[at:][:1] for at in told["text_offset"][-2:]] == [token[:1] for token in told["tokens"][-2:]]
    assert set(told["token_logprobs"]) == {LEAST}
    assert told["top_logprobs"][-1] == {told["tokens"][-1]: LEAST}
