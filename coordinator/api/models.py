"""GET /v1/models: what the listed providers advertise and the key may use, in OpenAI's form."""

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
async def models(request: Request, reader: Reader) -> dict[str, Any]:
    return {"object": "list", "data": [_model(name) for name in _known(request, reader)]}


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str, reader: Reader) -> dict[str, Any]:
    known = _known(request, reader)
    if model not in known:
        raise Refusal(model_not_found(model, known))
    return _model(model)


def _known(request: Request, reader: Token) -> list[str]:
    """What the key may use of what is served."""
    return [name for name in services_of(request).dispatcher.models() if reader.limits.allow(name)]


def _model(name: str) -> dict[str, Any]:
    """A fleet has no one time at which a model was made, so `created` is the epoch."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "darkbloom"}
