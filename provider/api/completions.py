"""`/v1/completions`: events to `text_completion` objects."""

from collections.abc import Callable

from provider.api.likelihoods import CompletionLikelihoods
from provider.api.translation import Chunk, Envelope, Tally, preempt
from provider.generation import Delta, Finished


class CompletionsTranslation:
    """One answer; owner: the answer it belongs to. Choices are numbered prompt by prompt."""

    def __init__(
        self,
        envelope: Envelope,
        tally: Tally,
        choices: int,
        likelihoods: Callable[[], CompletionLikelihoods] | None = None,
    ) -> None:
        """`likelihoods`: of a sequence, where its probabilities are to be told."""
        self._envelope = envelope
        self._tally = tally
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._reasons: list[str | None] = [None] * choices
        self._likelihoods = [likelihoods and likelihoods() for _ in range(choices)]

    @property
    def tally(self) -> Tally:
        return self._tally

    def delta(self, index: int, event: Delta) -> list[Chunk]:
        likelihoods = self._likelihoods[index]
        logprobs = None if likelihoods is None else likelihoods.hear(event)
        if not event.text:
            return []
        self._texts[index].append(event.text)
        return [self._object([_choice(index, event.text, None, logprobs)])]

    def finished(self, index: int, event: Finished) -> list[Chunk]:
        self._tally.add(event)
        self._reasons[index] = event.reason
        likelihoods = self._likelihoods[index]
        rest = None if likelihoods is None else likelihoods.finish()
        chunk = self._object([_choice(index, "", event.reason, rest)])
        return [{**chunk, "preempt": preempt(event.parks, event.recomputes)}]

    def empty_chunk(self) -> Chunk:
        return self._object([_choice(0, "", None)])

    def usage_chunk(self) -> Chunk:
        return {**self._object([]), "usage": self._tally.usage()}

    def whole(self) -> Chunk:
        answers = enumerate(zip(self._texts, self._reasons, self._likelihoods, strict=True))
        choices = [
            _choice(index, "".join(texts), reason, None if likelihoods is None else likelihoods.whole())
            for index, (texts, reason, likelihoods) in answers
        ]
        return {**self._object(choices), "usage": self._tally.usage(), "preempt": self._tally.preempt()}

    def _object(self, choices: list[Chunk]) -> Chunk:
        return {
            "id": self._envelope.id,
            "object": "text_completion",
            "created": self._envelope.created,
            "model": self._envelope.model,
            "choices": choices,
        }


def _choice(index: int, text: str, reason: str | None, logprobs: Chunk | None = None) -> Chunk:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
