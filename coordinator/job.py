"""A generation request as the coordinator handles it, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordinator.store.records import UNLIMITED, JobOutcome, KeyLimits, Usage
from provider.api.wire import Failure
from provider.protocol import InferenceChunk

FAULTS_OF_REQUESTS = frozenset([400, 404, 413])


@dataclass(frozen=True, slots=True)
class Job:
    """`body` is passed on as the client sent it; JSON of any form."""

    id: str
    token_id: int
    endpoint: str
    model: str
    stream: bool
    body: dict[str, Any]
    started_at: datetime
    priority: int = 0
    """Among the requests of its key: higher first."""
    request_id: str = ""
    """X-Request-ID, for the log."""
    limits: KeyLimits = UNLIMITED
    """Of its key."""


@dataclass(frozen=True, slots=True)
class Done:
    """The provider has finished. `body` is the answer of a request that does not stream."""

    body: dict[str, Any] | None


@dataclass(slots=True)
class Progress:
    """What has happened to a job so far; owned by the task that runs it."""

    attempts: int = 0
    provider_id: str | None = None
    chunks: int = 0
    prompt_tokens: int | None = None
    """As the provider has told with a chunk that was delivered."""
    delivered_tokens: int = 0
    """Where the provider tells no number, at least: a chunk with content is one token or more."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    parks: int = 0
    recomputes: int = 0

    def delivered(self, chunk: InferenceChunk) -> None:
        self.chunks += 1
        if chunk.prompt_tokens is not None:
            self.prompt_tokens = chunk.prompt_tokens
        if chunk.completion_tokens is None:
            self.delivered_tokens += _says_something(chunk.data)
        else:
            self.delivered_tokens = max(self.delivered_tokens, chunk.completion_tokens)

    def bill(self, job: Job, result: Done | Failure | None, finished_at: datetime) -> Usage:
        """`result` None: the client went away. Tokens as the provider counted them, else as delivered."""
        return Usage(
            job_id=job.id,
            token_id=job.token_id,
            endpoint=job.endpoint,
            model=job.model,
            provider_id=self.provider_id,
            attempts=self.attempts,
            outcome=outcome(result),
            code=result.code if isinstance(result, Failure) else None,
            prompt_tokens=_count(self.usage.get("prompt_tokens", self.prompt_tokens)),
            completion_tokens=_count(self.usage.get("completion_tokens")) or _count(self.delivered_tokens) or None,
            chunks=self.chunks,
            parks=self.parks,
            recomputes=self.recomputes,
            started_at=job.started_at,
            finished_at=finished_at,
        )


def outcome(result: Done | Failure | None) -> JobOutcome:
    match result:
        case None:
            return JobOutcome.CANCELLED
        case Done():
            return JobOutcome.COMPLETED
        case Failure(status=status):
            return JobOutcome.REFUSED if status in FAULTS_OF_REQUESTS else JobOutcome.FAILED


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _says_something(data: Mapping[str, Any]) -> bool:
    """A chunk of any API: one with choices, or a delta of messages or responses."""
    kind = data.get("type")
    if isinstance(kind, str):
        return kind == "content_block_delta" or kind.endswith(".delta")
    return any(_has_content(choice) for choice in data.get("choices") or ())


def _has_content(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    said = delta if isinstance(delta, dict) else {"content": choice.get("text")}
    return any(said.get(key) for key in ("content", "reasoning_content", "tool_calls"))
