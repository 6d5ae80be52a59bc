"""GET /v1/admin/placement: how far the pools of the desired models are, and why not further."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request

from coordinator.api.auth import requires, services_of
from coordinator.placement import PoolState
from coordinator.store.records import Token, TokenKind

router = APIRouter(responses={"default": {"description": "An error, in OpenAI's form."}})
Operator = Annotated[Token, Depends(requires(TokenKind.ADMIN))]


@router.get("/v1/admin/placement")
async def placement(request: Request, _: Operator) -> dict[str, Any]:
    """`placing`: this coordinator is the one that orders loads. As of its last look, a few seconds ago."""
    placer = services_of(request).placer
    return {"placing": placer.placing, "pools": [_shown(pool) for pool in placer.placement.pools]}


def _shown(state: PoolState) -> dict[str, Any]:
    """`blocked` is of a pool that is short."""
    return {
        "model": state.model,
        "providers": state.pool.providers,
        "min_warm": state.pool.min_warm,
        "warm": list(state.held),
        "loading": list(state.coming),
        "missing": state.missing,
        "blocked": {provider: reason.value for provider, reason in state.blocked.items()},
    }
