"""POST /v1/route: the decision that a request would meet now, and every provider's part in it. Nothing is sent."""

import random
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from coordinator import routing
from coordinator.api.auth import requires, services_of
from coordinator.api.body import described, read
from coordinator.api.errors import Refusal
from coordinator.api.limited import not_allowed
from coordinator.api.slices import json_list, json_object
from coordinator.details import detail
from coordinator.fleet import ProviderView
from coordinator.routing import Candidate, Chosen, Reason, Refused
from coordinator.routing import Request as Wanted
from coordinator.services import Services
from coordinator.store.records import MemoryTables, Token, TokenKind
from provider.api.events import encoded

router = APIRouter(responses={"default": {"description": "An error, in OpenAI's form."}})
Reader = Annotated[Token, Depends(requires(TokenKind.API, TokenKind.ADMIN))]
Tokens = Annotated[int, Field(ge=0, le=2**40)]
RNG = random.Random()
LISTED, MOST_LISTED = 10_000, 1_000_000


class Asked(BaseModel):
    """Of a request that is not made: its prompt and the longest answer that it would allow, in tokens. `exact` asks
    for exact concurrency, `vision` for a model that sees pictures. `limit` is of the providers that are listed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    prompt_tokens: Tokens
    max_tokens: Tokens
    exact: bool = False
    vision: bool = False
    limit: Annotated[int, Field(ge=0, le=MOST_LISTED)] = LISTED


@router.post("/v1/route", openapi_extra=described(Asked))
async def route(request: Request, caller: Reader) -> Response:
    asked = await read(request, Asked)
    if caller.kind is TokenKind.API and not caller.limits.allow(asked.model):
        raise Refusal(not_allowed(asked.model))
    services = services_of(request)
    async with services.explaining:
        answer = await _explained(services, _wanted(services, asked), time.monotonic(), asked.limit)
    return Response(answer, media_type="application/json")


async def _explained(services: Services, wanted: Wanted, now_s: float, limit: int) -> bytes:
    """Of one moment, though it is written over several turns of the event loop."""
    views, timings, tables = services.hub.views, services.settings.timings, services.reference.tables
    outcome = routing.route(wanted, views, now_s, RNG, timings, tables)
    explanation = routing.Explanation(wanted, views, now_s, timings, tables)

    def shown(provider_id: str) -> dict[str, Any]:
        (one,) = explanation.candidates([provider_id])
        return _candidate(one, wanted, explanation.views[provider_id], now_s, tables)

    return json_object(
        decision=encoded(_decision(outcome)),
        refused=encoded(_refused(outcome)),
        counts=encoded(_counts(explanation)),
        candidates=await json_list(explanation.nearest(limit), shown),
    )


def _counts(explanation: routing.Explanation) -> dict[str, int]:
    """Of all providers, listed or not."""
    counts = explanation.counts
    eligible = len(explanation.views) - sum(counts.values())
    return {"eligible": eligible, **{reason.value: count for reason, count in counts.items()}}


def _wanted(services: Services, asked: Asked) -> Wanted:
    """The lengths are known, and not estimated."""
    return Wanted(
        model=asked.model,
        prompt_tokens=asked.prompt_tokens,
        least_tokens=asked.prompt_tokens,
        answer_tokens=services.dispatcher.estimates.answer_tokens(asked.model, asked.max_tokens),
        exact=asked.exact,
        vision=asked.vision,
    )


def _decision(outcome: Chosen | Refused) -> dict[str, Any] | None:
    if isinstance(outcome, Refused):
        return None
    return {"provider": outcome.provider_id, "cost_ms": round(outcome.cost_ms, 3)}


def _refused(outcome: Chosen | Refused) -> dict[str, Any] | None:
    """In an empty fleet nobody serves the model."""
    if isinstance(outcome, Chosen):
        return None
    reason = outcome.reason or Reason.MODEL_NOT_SERVED
    told = {"reason": reason.value, "providers": {one.value: count for one, count in outcome.counts.items()}}
    return told if outcome.beyond is None else {**told, "longest_tokens": outcome.beyond.longest_tokens}


def _candidate(
    one: Candidate, wanted: Wanted, view: ProviderView, now_s: float, tables: MemoryTables
) -> dict[str, Any]:
    terms = None if one.terms is None else one.terms._asdict()
    return {
        "provider": one.provider_id,
        "name": view.name,
        "eligible": one.reason is None,
        "reason": one.reason,
        "detail": detail(one.reason, wanted, view, now_s, tables),
        "cost_ms": None if one.cost_ms is None else round(one.cost_ms, 3),
        "terms": None if terms is None else {term: round(value, 3) for term, value in terms.items()},
    }
