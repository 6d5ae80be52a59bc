"""How many tokens a prompt has, without a tokenizer: from its bytes, at a ratio learned per model from usage. And how
many its answer will have: as many as answers of that model have had on average, and no more than are allowed.

`likely` steers the balance between providers; only `least` may refuse, so it is a bound from below: of the longest
prompt alone, at far more bytes a token than were ever seen, with long runs of one character left out.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Learned = TypeVar("Learned")
BYTES_PER_TOKEN = 4.0
"""Of ordinary text, while nothing has been learned."""
MOST_BYTES_PER_TOKEN = 6.0
"""More than a text has on average in any language."""
MARGIN = 2.0
LEARNED_FROM_BYTES = 256
"""In a shorter prompt the template's own tokens weigh too much."""
KEPT = 0.98
"""Of what was learned before, with each prompt."""
ANSWER_TOKENS = 256
"""While nothing has been learned."""
KEPT_OF_ANSWERS = 0.95
MODELS = 1000
RUNS = tuple(4 * one for one in " \t\n-=*#_.~")
"""Indents and rulers: a tokenizer may make one token of very many of these."""
THINKING_ENDS = "</think>"
"""Templates leave out what an earlier answer has thought before this."""


@dataclass(frozen=True, slots=True)
class Tokens:
    likely: int
    least: int


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt: UTF-8 bytes, how many of them are not in long runs, and tokens given as ids."""

    bytes: int
    dense_bytes: int
    ids: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """Bytes and tokens seen, the old ones fading, and the most bytes a token has had in one prompt."""

    bytes: float = BYTES_PER_TOKEN
    tokens: float = 1.0
    most: float = MOST_BYTES_PER_TOKEN

    @property
    def mean(self) -> float:
        return self.bytes / self.tokens

    def learned(self, seen_bytes: int, seen_tokens: int) -> "Ratio":
        """A token has a byte at least: what is counted beyond that is not in the text (tools, pictures)."""
        counted = min(seen_tokens, seen_bytes)
        most = MOST_BYTES_PER_TOKEN + KEPT * (self.most - MOST_BYTES_PER_TOKEN)
        return Ratio(KEPT * self.bytes + seen_bytes, KEPT * self.tokens + counted, max(most, seen_bytes / counted))


class Estimates:
    """What usage has taught, by model. Owned by the event loop."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[str, Ratio] = OrderedDict()
        self._answers: OrderedDict[str, float] = OrderedDict()

    def ratio(self, model: str) -> Ratio:
        return self._ratios.get(model, Ratio())

    def tokens(self, model: str, prompts: list[Text]) -> Tokens:
        return tokens(prompts, self.ratio(model))

    def learn(self, model: str, prompts: list[Text], counted: object) -> None:
        """`counted` is the provider's number of prompt tokens, which may be anything."""
        seen = sum(one.bytes for one in prompts)
        if seen < LEARNED_FROM_BYTES or any(one.ids for one in prompts):
            return
        if isinstance(counted, int) and counted > 0:
            _remember(self._ratios, model, self.ratio(model).learned(seen, counted))

    def answer_tokens(self, model: str, most: int | None) -> int:
        """At least 1. `most`: what the request allows, None where it does not say."""
        likely = max(1, round(self._answers.get(model, ANSWER_TOKENS)))
        return likely if most is None else max(1, min(likely, most))

    def learn_answer(self, model: str, counted: object) -> None:
        """`counted` is the provider's number of tokens of one answer, which may be anything."""
        if isinstance(counted, int) and 0 < counted < 2**31:
            known = self._answers.get(model, float(ANSWER_TOKENS))
            _remember(self._answers, model, KEPT_OF_ANSWERS * known + (1 - KEPT_OF_ANSWERS) * counted)


def most_tokens(body: Mapping[str, Any]) -> int | None:
    """What a generation's body, of any form, allows its answer; None where it does not say."""
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _remember(known: OrderedDict[str, Learned], model: str, value: Learned) -> None:
    known[model] = value
    known.move_to_end(model)
    if len(known) > MODELS:
        known.popitem(last=False)


def tokens(prompts: list[Text], ratio: Ratio) -> Tokens:
    """Of all prompts together, and at least of the longest: each is a sequence of its own."""
    likely = sum(one.ids + round(one.bytes / ratio.mean) for one in prompts)
    least = max((one.ids + int(one.dense_bytes / (MARGIN * ratio.most)) for one in prompts), default=0)
    return Tokens(likely, least)


def prompts_of(body: Mapping[str, Any]) -> list[Text]:
    """The prompts of a generation's body, which may be JSON of any form."""
    for conversation, before in (("messages", "system"), ("input", "instructions")):
        if body.get(conversation) is not None:
            return [_text([body.get(before), body[conversation]])]
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(part, int) for part in prompt):
        return [_text(one) for one in prompt]
    return [_text(prompt)]


def _text(prompt: object) -> Text:
    all_of_it = list(pieces(prompt))
    strings = [piece for piece in all_of_it if isinstance(piece, str)]
    size = sum(len(one.encode(errors="replace")) for one in strings)
    runs = sum(4 * one.count(run) for one in strings for run in RUNS)
    return Text(size, size - runs, len(all_of_it) - len(strings))


def pieces(prompt: object) -> Iterator[str | int]:
    """The texts and token ids of a prompt, in no order. Without recursion, for a body may be nested as deep as its
    parser went."""
    rest = [prompt]
    while rest:
        match rest.pop():
            case str() | int() as piece:
                yield piece
            case list() as parts:
                rest.extend(parts)
            case {"type": "reasoning"}:
                pass
            case {"role": "assistant", "content": str() as content}:
                yield content.rpartition(THINKING_ENDS)[2]
            case {"output": part}:
                rest.append(part)
            case {"text": part} | {"content": part}:
                rest.append(part)
