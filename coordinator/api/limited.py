"""A request within its key's limits, or the refusal of one that is not."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.api.errors import Refusal
from coordinator.estimates import Ratio, most_tokens, prompts_of, tokens
from coordinator.job import Job
from coordinator.limits import Exceeded, RateLimits
from coordinator.store.records import Token
from provider.api.wire import Failure

UNITS = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}


def admitted(limits: RateLimits, caller: Token, job: Job, answer: Response) -> Response:
    """`answer`, which runs the job. Raises Refusal."""
    if not caller.limits.allow(job.model):
        raise Refusal(not_allowed(job.model))
    foreseen = 0 if caller.limits.tokens_per_minute is None else _foreseen_tokens(job.body)
    exceeded = limits.admit(caller, job.id, foreseen)
    if exceeded is not None:
        raise Refusal(_rate_limited(exceeded))
    return _Settled(answer, limits, job)


class _Settled(Response):
    """A job that has reached no provider has used nothing."""

    def __init__(self, answer: Response, limits: RateLimits, job: Job) -> None:
        super().__init__()
        self._answer = answer
        self._limits = limits
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._limits.settle(self._job.id, 0)


def _foreseen_tokens(body: Mapping[str, Any]) -> int:
    """Of the prompt, by its bytes, and of the longest answer that the client has asked for, if it has said so."""
    prompt = tokens(prompts_of(body), Ratio()).likely
    return prompt + min(most_tokens(body) or 0, 2**31)


def _rate_limited(exceeded: Exceeded) -> Failure:
    units = UNITS[exceeded.limit]
    message = (
        f"This key may use {exceeded.allowed} {units} a minute here, and has: try again in {exceeded.retry_after_s} s."
    )
    return Failure(
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        message,
        retryable=True,
        retry_after_s=exceeded.retry_after_s,
        detail={"limit": exceeded.limit, "allowed": exceeded.allowed},
    )


def not_allowed(model: str) -> Failure:
    """The same whether or not anybody serves the model."""
    message = f"This key may not use the model {model!r}: `GET /v1/models` lists those that it may."
    return Failure(403, "permission_error", "model_not_allowed", message, "model")
