"""`/v1/chat/completions`: events to `chat.completion` objects."""

from collections.abc import Callable, Sequence
from typing import assert_never

from provider.api.likelihoods import Likelihoods, Spoken
from provider.api.output import CallArguments, CallBegun, Content, OutputParser, Piece, Reasoning
from provider.api.thought import ThoughtCounter
from provider.api.translation import Chunk, Envelope, Tally, preempt
from provider.generation import Delta, Finished
from provider.text import Decode

_SAID = {"content", "tool_calls"}


class ChatTranslation:
    """One answer; owner: the answer it belongs to."""

    def __init__(
        self,
        envelope: Envelope,
        tally: Tally,
        choices: int,
        new_parser: Callable[[], OutputParser],
        decode: Decode,
        likelihoods: Callable[[], Likelihoods] | None = None,
    ) -> None:
        """`likelihoods`: of a sequence, where its probabilities are to be told."""
        self._envelope = envelope
        self._tally = tally
        self._choices = [
            _Choice(index, new_parser(), decode, likelihoods and likelihoods()) for index in range(choices)
        ]

    @property
    def tally(self) -> Tally:
        return self._tally

    def delta(self, index: int, event: Delta) -> list[Chunk]:
        choice = self._choices[index]
        return self._with_logprobs([self._chunk(index, delta) for delta in choice.delta(event)], choice)

    def finished(self, index: int, event: Finished) -> list[Chunk]:
        self._tally.add(event)
        choice = self._choices[index]
        chunks = [self._chunk(index, delta) for delta in choice.finish(event)]
        chunks = self._with_logprobs(chunks, choice)
        self._tally.reasoning_tokens += choice.thought_tokens
        last = self._chunk(index, {}, choice.finish_reason)
        _tell(last, choice.rest())
        return [*chunks, {**last, "preempt": preempt(event.parks, event.recomputes)}]

    def empty_chunk(self) -> Chunk:
        return self._chunk(0, {})

    def usage_chunk(self) -> Chunk:
        return {**self._object("chat.completion.chunk", []), "usage": self._tally.usage()}

    def whole(self) -> Chunk:
        whole = self._object("chat.completion", [choice.whole() for choice in self._choices])
        return {**whole, "usage": self._tally.usage(), "preempt": self._tally.preempt()}

    def _with_logprobs(self, chunks: list[Chunk], choice: "_Choice") -> list[Chunk]:
        """With the probabilities of what the chunks say, in the first that says more than a thought."""
        for chunk in chunks:
            if _SAID & chunk["choices"][0]["delta"].keys() and chunk["choices"][0]["delta"].get("content") != "":
                _tell(chunk, choice.likely())
                break
        return chunks

    def _chunk(self, index: int, delta: Chunk, reason: str | None = None) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[Chunk]) -> Chunk:
        return {
            "id": self._envelope.id,
            "object": kind,
            "created": self._envelope.created,
            "model": self._envelope.model,
            "choices": choices,
        }


class _Choice:
    """What one sequence has said so far."""

    def __init__(self, index: int, parser: OutputParser, decode: Decode, likelihoods: Likelihoods | None) -> None:
        self._index = index
        self._parser = parser
        self._thought = ThoughtCounter(parser, decode)
        self._begun = False
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Chunk] = []
        self._likelihoods = likelihoods
        self._likely: list[Chunk] = []
        self.finish_reason: str | None = None

    @property
    def thought_tokens(self) -> int:
        return self._thought.tokens

    def delta(self, event: Delta) -> list[Chunk]:
        deltas = self._begin() + [self._take(piece) for piece in self._parser.push(event.text)]
        self._thought.hear(event.token_ids)
        if self._likelihoods is not None:
            self._likelihoods.hear(event)
        return deltas

    def likely(self) -> list[Chunk]:
        """The probabilities of what has been said since the last time, as chats write them."""
        if self._likelihoods is None:
            return []
        return self._keep(self._likelihoods.take(self._thought.tokens), self._likelihoods)

    def rest(self) -> list[Chunk]:
        """Those of what is left, once the answer has ended."""
        if self._likelihoods is None:
            return []
        return self._keep(self._likelihoods.finish(self._thought.tokens), self._likelihoods)

    def _keep(self, spoken: Sequence[Spoken], likelihoods: Likelihoods) -> list[Chunk]:
        told = likelihoods.chat(spoken)
        self._likely += told
        return told

    def finish(self, event: Finished) -> list[Chunk]:
        pieces = self._parser.finish(event.reason == "length", event.stop is not None)
        deltas = self._begin() + [self._take(piece) for piece in pieces]
        called = self._calls and event.reason == "stop"
        self.finish_reason = "tool_calls" if called else event.reason
        return deltas

    def whole(self) -> Chunk:
        content = "".join(self._content)
        message: Chunk = {"role": "assistant", "content": content or (None if self._calls else "")}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": None if self._likelihoods is None else _logprobs(self._likely),
            "finish_reason": self.finish_reason,
        }

    def _begin(self) -> list[Chunk]:
        """The role, once, with the first sign of life."""
        if self._begun:
            return []
        self._begun = True
        return [{"role": "assistant", "content": ""}]

    def _take(self, piece: Piece) -> Chunk:
        """Remembers `piece` and returns it as a delta."""
        match piece:
            case Reasoning(text):
                self._reasoning.append(text)
                return {"reasoning_content": text}
            case Content(text):
                self._content.append(text)
                return {"content": text}
            case CallBegun(index, call_id, name):
                self._calls.append(_call(call_id, name))
                return _call_delta(index, _call(call_id, name))
            case CallArguments(index, text):
                self._calls[index]["function"]["arguments"] += text
                return _call_delta(index, {"function": {"arguments": text}})
            case _:
                assert_never(piece)


def _tell(chunk: Chunk, likely: list[Chunk]) -> None:
    if likely:
        chunk["choices"][0]["logprobs"] = _logprobs(likely)


def _logprobs(likely: list[Chunk]) -> Chunk:
    return {"content": likely, "refusal": None}


def _call(call_id: str, name: str) -> Chunk:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}


def _call_delta(index: int, call: Chunk) -> Chunk:
    return {"tool_calls": [{"index": index, **call}]}
