"""The routes of generation: passed on to a provider, which does all validation but this."""

import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api import notices
from coordinator.api.auth import requires, services_of
from coordinator.api.body import read_object
from coordinator.api.errors import Refusal
from coordinator.api.limited import admitted
from coordinator.api.relay import Relay
from coordinator.job import Job
from coordinator.store.records import Token, TokenKind
from provider.api.events import COUNT_TOKENS, MESSAGES, RESPONSES
from provider.api.wire import invalid_request, wrong_model

router = APIRouter()
Caller = Annotated[Token, Depends(requires(TokenKind.API))]
SHAPE = {
    "type": "object",
    "description": "As the provider takes it: its own document, and docs/api.md, say more.",
    "properties": {"model": {"type": "string", "minLength": 1}, "stream": {"type": ["boolean", "null"]}},
    "required": ["model"],
}
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": SHAPE}}}}


@router.post("/v1/chat/completions", name="create_chat_completion", openapi_extra=BODY)
@router.post("/v1/completions", name="create_completion", openapi_extra=BODY)
@router.post(RESPONSES, name="create_response", openapi_extra=BODY)
@router.post(MESSAGES, name="create_message", openapi_extra=BODY)
@router.post(COUNT_TOKENS, name="count_message_tokens", openapi_extra=BODY)
async def generate(request: Request, caller: Caller) -> Response:
    body = await read_object(request)
    job = Job(
        id=str(uuid.uuid4()),
        token_id=caller.id,
        endpoint=request.url.path,
        model=_model(body),
        stream=_stream(body) and request.url.path != COUNT_TOKENS,
        body=body,
        started_at=datetime.now(UTC),
        priority=_priority(body),
        request_id=request.state.request_id,
        limits=caller.limits,
    )
    request.state.job_id = job.id
    services = services_of(request)
    relay = Relay(services.dispatcher.run, job, notices.wanted(request.headers))
    return admitted(services.limits, caller, job, relay)


def _model(body: dict[str, Any]) -> str:
    model = body.get("model")
    if (failure := wrong_model(model)) is not None:
        raise Refusal(failure)
    return str(model)


def _stream(body: dict[str, Any]) -> bool:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise Refusal(invalid_request("`stream` must be true or false.", "stream"))
    return bool(stream)


def _priority(body: dict[str, Any]) -> int:
    """What is none is for the provider to refuse."""
    priority = body.get("priority")
    return priority if isinstance(priority, int) and not isinstance(priority, bool) else 0
