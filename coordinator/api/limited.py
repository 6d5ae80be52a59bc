"""A request within its key's limits, or the refusal of one that is not."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from coordinator.api.errors import Refusal
from coordinator.estimates import Ratio, most_tokens, prompts_of, tokens
from coordinator.job import Job
from coordinator.limits import Exceeded, RateLimits, Standing
from coordinator.store.records import Token
from provider.api.wire import Failure, told_name

UNITS = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}


def admitted(limits: RateLimits, caller: Token, job: Job, answer: Response) -> Response:
    """`answer`, which runs the job, with what is left of the key's limits in its headers. Raises Refusal."""
    if not caller.limits.allow(job.model):
        raise Refusal(not_allowed(job.model))
    foreseen = 0 if caller.limits.tokens_per_minute is None else _foreseen_tokens(job.body)
    exceeded = limits.admit(caller, job.id, foreseen)
    headers = rate_headers(limits.standings(caller))
    if exceeded is not None:
        raise Refusal(_rate_limited(exceeded), headers)
    return _Settled(answer, limits, job, headers)


def rate_headers(standings: Iterable[Standing]) -> dict[str, str]:
    """As OpenAI's: https://platform.openai.com/docs/guides/rate-limits"""
    headers = {}
    for one in standings:
        unit = UNITS[one.limit]
        headers[f"x-ratelimit-limit-{unit}"] = str(one.allowed)
        headers[f"x-ratelimit-remaining-{unit}"] = str(one.remaining)
        headers[f"x-ratelimit-reset-{unit}"] = _duration(one.reset_s)
    return headers


def _duration(seconds: float) -> str:
    """Such as 6m0s, 2.5s or 40ms; never too short."""
    ms = math.ceil(round(seconds * 1000, 3))
    if ms < 1000:
        return f"{ms}ms"
    minutes, left = divmod(ms, 60_000)
    told = f"{left / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{told}s" if minutes else f"{told}s"


class _Settled(Response):
    """A job that has reached no provider has used nothing."""

    def __init__(self, answer: Response, limits: RateLimits, job: Job, rates: Mapping[str, str]) -> None:
        super().__init__()
        self._answer = answer
        self._limits = limits
        self._job = job
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def limited(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._rates)
            await send(message)

        try:
            await self._answer(scope, receive, limited if self._rates else send)
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
    message = f"This key may not use the model {told_name(model)}: `GET /v1/models` lists those that it may."
    return Failure(403, "permission_error", "model_not_allowed", message, "model")
