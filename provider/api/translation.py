"""What every translation of events into an API's objects has in common."""

from dataclasses import dataclass
from typing import Any, Protocol

from provider.generation import Delta, Finished

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks and the whole object of one answer share. `created` is in Unix seconds."""

    id: str
    created: int
    model: str


class Translation(Protocol):
    """One answer on its way out, whole or in chunks. Pure: it is told events, and keeps what was said.

    `index` is the number of the sequence among those of the request.
    """

    def delta(self, index: int, event: Delta) -> list[Chunk]: ...

    def finished(self, index: int, event: Finished) -> list[Chunk]: ...

    def empty_chunk(self) -> Chunk:
        """A chunk that says nothing: a notice for clients that cannot bear comments."""
        ...

    def usage_chunk(self) -> Chunk:
        """The last chunk of a stream whose usage was asked for."""
        ...

    def whole(self) -> Chunk:
        """The object of a request that does not stream, once every sequence has finished."""
        ...

    @property
    def tally(self) -> "Tally": ...


@dataclass(slots=True)
class Tally:
    """The counts of one answer. A prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    parks: int = 0
    recomputes: int = 0
    accepted: int = 0
    rejected: int = 0

    def add(self, event: Finished) -> None:
        self.completion_tokens += event.completion_tokens
        self.parks += event.parks
        self.recomputes += event.recomputes
        self.accepted += event.accepted
        self.rejected += event.rejected

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }

    def preempt(self) -> dict[str, int]:
        return preempt(self.parks, self.recomputes)


def preempt(parks: int, recomputes: int) -> dict[str, int]:
    return {"parks": parks, "recomputes": recomputes}
