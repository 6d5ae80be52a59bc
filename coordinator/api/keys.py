"""GET, POST and DELETE /v1/admin/keys: the keys of clients, providers and operators. A secret is shown once, when it is
made."""

import secrets
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator import log
from coordinator.api.auth import requires, services_of
from coordinator.api.body import described, read
from coordinator.api.errors import Refusal
from coordinator.keys import hashed, new_secret
from coordinator.store.records import KeyLimits, Token, TokenKind
from provider.api.wire import Failure

router = APIRouter(responses={"default": {"description": "An error, in OpenAI's form."}})
Operator = Annotated[Token, Depends(requires(TokenKind.ADMIN))]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
ModelId = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
Rate = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
MAX_MODELS = 1000


class NewKey(BaseModel):
    """The limits are for keys of kind `api`, and what is left out is not limited. `models` are all that it may use."""

    model_config = ConfigDict(extra="forbid")

    kind: TokenKind
    name: Name | None = None
    models: list[ModelId] | None = Field(default=None, min_length=1, max_length=MAX_MODELS)
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None

    @model_validator(mode="after")
    def _limits_are_of_api_keys(self) -> "NewKey":
        if self.kind is not TokenKind.API and self.limits != KeyLimits():
            raise ValueError("models, requests_per_minute and tokens_per_minute: only a key of kind api has them")
        return self

    @property
    def limits(self) -> KeyLimits:
        models = None if self.models is None else frozenset(self.models)
        return KeyLimits(models, self.requests_per_minute, self.tokens_per_minute)


@router.get("/v1/admin/keys")
async def keys(request: Request, _: Operator) -> dict[str, Any]:
    """Every key ever made, without its secret."""
    return {"object": "list", "data": [_shown(one) for one in await services_of(request).store.tokens()]}


@router.post("/v1/admin/keys", status_code=201, openapi_extra=described(NewKey))
async def create(request: Request, operator: Operator) -> Response:
    """Make a key. `secret` is nowhere else and never again: only its SHA-256 is stored."""
    wanted = await read(request, NewKey)
    secret = new_secret()
    name = wanted.name or f"{wanted.kind.value}-{secrets.token_hex(3)}"
    store = services_of(request).store
    made = await store.add_token(wanted.kind, name, hashed(secret), datetime.now(UTC), wanted.limits)
    log.event("key_created", key=made.id, kind=made.kind.value, by=operator.id)
    return JSONResponse({**_shown(made), "secret": secret}, 201, {"Cache-Control": "no-store"})


@router.delete("/v1/admin/keys/{key}", responses={404: {"description": "No live key has this id."}})
async def revoke(request: Request, key: int, operator: Operator) -> dict[str, Any]:
    """Revoke the live key of that id: here at once, at the other coordinators within seconds."""
    services = services_of(request)
    revoked = await services.store.revoke_token(key, datetime.now(UTC)) if 0 < key < 2**63 else None
    if revoked is None:
        raise Refusal(Failure(404, "invalid_request_error", "key_not_found", f"No live key has the id {key}."))
    services.keys.revoked(revoked.id)
    log.event("key_revoked", key=revoked.id, kind=revoked.kind.value, by=operator.id)
    return _shown(revoked)


def _shown(token: Token) -> dict[str, Any]:
    limits = token.limits
    return {
        "id": token.id,
        "kind": token.kind.value,
        "name": token.name,
        "models": None if limits.models is None else sorted(limits.models),
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "created_at": token.created_at.isoformat(),
        "revoked_at": None if token.revoked_at is None else token.revoked_at.isoformat(),
        "last_used_at": None if token.last_used_at is None else token.last_used_at.isoformat(),
    }
