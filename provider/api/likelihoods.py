"""The probabilities of an answer's tokens, told with the text they are part of.

Pure. A token is told once some of its text has been, so that what a stop string takes back is never told, and what
begins the next character waits for the rest of it.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provider.generation import Delta, TextTokenizer, TokenLogprob

LEAST = -9999.0
"""What OpenAI's API tells of a token that could not come: JSON has no infinity."""

Told = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A token of the answer; `begin`: where its text begins, in bytes from the answer's own beginning."""

    number: int
    token_bytes: bytes
    begin: int
    logprob: TokenLogprob

    @property
    def is_blank(self) -> bool:
        return self.token_bytes.isspace()


class Likelihoods:
    """Owner: the translation of one sequence. `skip_special` as the engine has it; `stops`: whether a stop string may
    take back the end of the text; `markup`: whether thinking and blank lines before an answer are no part of it."""

    def __init__(self, tokenizer: TextTokenizer, skip_special: bool, stops: bool, markup: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special else frozenset[int]()
        self._stops = stops
        self._heard = 0
        self._heard_bytes = 0
        self._told_bytes = 0
        self._waiting: list[Spoken] = []
        self._begun = not markup

    def hear(self, event: Delta) -> None:
        self._told_bytes += len(event.text.encode(errors="replace"))
        for token_id, logprob in zip(event.token_ids, event.logprobs or (), strict=False):
            said = b"" if token_id in self._skipped else self._tokenizer.token_bytes(token_id)
            if said:
                self._waiting.append(Spoken(self._heard, said, self._heard_bytes, logprob))
            self._heard += 1
            self._heard_bytes += len(said)

    def take(self, thought_tokens: int = 0) -> list[Spoken]:
        """Those whose text has been told and which have not; without the first `thought_tokens`, and without the blank
        lines behind them, which belong to the markup."""
        return self._taken([one for one in self._waiting if one.begin < self._told_bytes], thought_tokens)

    def finish(self, thought_tokens: int = 0) -> list[Spoken]:
        """The rest, once the answer has ended."""
        return self.take(thought_tokens) if self._stops else self._taken(list(self._waiting), thought_tokens)

    def chat(self, spoken: Sequence[Spoken]) -> list[Told]:
        """As chats and responses write them."""
        return [{**self._one(one.token_bytes, one.logprob.logprob), "top_logprobs": self._top(one)} for one in spoken]

    def _taken(self, ready: list[Spoken], thought_tokens: int) -> list[Spoken]:
        self._waiting = self._waiting[len(ready) :]
        told = [one for one in ready if one.number >= thought_tokens]
        if not self._begun:
            told = _without_blank_lines(told)
            self._begun = bool(told)
        return told

    def _top(self, spoken: Spoken) -> list[Told]:
        return [self._one(self._tokenizer.token_bytes(token), logprob) for token, logprob in spoken.logprob.top]

    def _one(self, token_bytes: bytes, logprob: float) -> Told:
        return {"token": text_of(token_bytes), "logprob": max(logprob, LEAST), "bytes": list(token_bytes)}


def _without_blank_lines(spoken: Sequence[Spoken]) -> list[Spoken]:
    """Without the blank tokens up to the last line break before anything is said."""
    said = next((place for place, one in enumerate(spoken) if not one.is_blank), len(spoken))
    breaks = [place for place, one in enumerate(spoken[:said]) if b"\n" in one.token_bytes]
    return list(spoken[breaks[-1] + 1 if breaks else 0 :])


class CompletionLikelihoods:
    """As completions write them. Owner: the translation of one sequence."""

    def __init__(self, tokenizer: TextTokenizer, skip_special: bool, stops: bool) -> None:
        self._likelihoods = Likelihoods(tokenizer, skip_special, stops, markup=False)
        self._tokenizer = tokenizer
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._chars = 0
        self._said: list[tuple[int, Spoken]] = []

    def hear(self, event: Delta) -> Told:
        self._likelihoods.hear(event)
        return self._told(self._likelihoods.take())

    def finish(self) -> Told:
        return self._told(self._likelihoods.finish())

    def whole(self) -> Told:
        return self._written(self._said)

    def _told(self, spoken: Sequence[Spoken]) -> Told:
        placed = []
        for one in spoken:
            placed.append((self._chars, one))
            self._chars += len(self._decoder.decode(one.token_bytes))
        self._said += placed
        return self._written(placed)

    def _written(self, placed: Sequence[tuple[int, Spoken]]) -> Told:
        return {
            "text_offset": [chars for chars, _ in placed],
            "tokens": [text_of(one.token_bytes) for _, one in placed],
            "token_logprobs": [max(one.logprob.logprob, LEAST) for _, one in placed],
            "top_logprobs": [self._top(one) for _, one in placed],
        }

    def _top(self, spoken: Spoken) -> dict[str, float]:
        """With the token itself, as OpenAI has it."""
        top = {text_of(self._tokenizer.token_bytes(token)): max(value, LEAST) for token, value in spoken.logprob.top}
        return top | {text_of(spoken.token_bytes): max(spoken.logprob.logprob, LEAST)}


def text_of(token_bytes: bytes) -> str:
    return token_bytes.decode(errors="replace")
