"""GET /v1/models: what the listed providers advertise and the key may use, in OpenAI's form or Anthropic's."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from coordinator.api.auth import requires, services_of
from coordinator.api.errors import Refusal
from coordinator.api.limited import not_allowed
from coordinator.api.slices import json_list, json_object
from coordinator.refusals import not_served
from coordinator.store.records import Token, TokenKind
from provider.api.events import encoded
from provider.api.model_list import ListedModel, model_list, model_object

router = APIRouter()
Reader = Annotated[Token, Depends(requires(TokenKind.API, TokenKind.ADMIN))]


@router.get("/v1/models")
async def models(request: Request, reader: Reader) -> Response:
    """All of them on one page, written over several turns of the event loop."""
    names = _known(request, reader)
    data = await json_list(names, lambda name: model_object(_listed(request, name), request.headers))
    page = model_list([_listed(request, name) for name in (*names[:1], *names[-1:])], request.headers)
    around = {key: encoded(value) for key, value in page.items() if key != "data"}
    return Response(json_object(**around, data=data), media_type="application/json")


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str, reader: Reader) -> dict[str, Any]:
    """Of a key's list, as for generation: what it may not use is forbidden, whether or not it is there."""
    if not reader.limits.allow(model):
        raise Refusal(not_allowed(model))
    if model not in _known(request, reader):
        present = services_of(request).hub.views.present
        raise Refusal(not_served(model, (name for name in present if reader.limits.allow(name))))
    return model_object(_listed(request, model), request.headers)


def _known(request: Request, reader: Token) -> list[str]:
    """What the key may use of what is served."""
    return [name for name in services_of(request).dispatcher.models() if reader.limits.allow(name)]


def _listed(request: Request, name: str) -> ListedModel:
    """A fleet has no one time at which a model was made."""
    return ListedModel(name, context_length=services_of(request).hub.views.context_length(name))
