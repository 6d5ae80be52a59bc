"""GET /v1/models: what the listed providers advertise, in OpenAI's form."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request

from coordinator.api.auth import requires, services_of
from coordinator.api.errors import Refusal
from coordinator.store.records import Token, TokenKind
from provider.api.wire import model_not_found

router = APIRouter()
Reader = Annotated[Token, Depends(requires(TokenKind.API, TokenKind.ADMIN))]


@router.get("/v1/models")
async def models(request: Request, _: Reader) -> dict[str, Any]:
    return {"object": "list", "data": [_model(name) for name in services_of(request).dispatcher.models()]}


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str, _: Reader) -> dict[str, Any]:
    known = services_of(request).dispatcher.models()
    if model not in known:
        raise Refusal(model_not_found(model, known))
    return _model(model)


def _model(name: str) -> dict[str, Any]:
    """A fleet has no one time at which a model was made, so `created` is the epoch."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "darkbloom"}
