"""GET /v1/fleet: what the coordinator knows of each provider, and why it is (not) routable."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request

from coordinator.api.auth import requires, services_of
from coordinator.api.errors import Refusal
from coordinator.config import Timings
from coordinator.fleet import Presence, ProviderView, presence
from coordinator.routing import Reason, judge
from coordinator.routing import Request as Wanted
from coordinator.store.records import Token, TokenKind
from provider.api.wire import Failure

router = APIRouter()
Reader = Annotated[Token, Depends(requires(TokenKind.API, TokenKind.ADMIN))]


@router.get("/v1/fleet")
async def fleet(request: Request, _: Reader) -> dict[str, Any]:
    services = services_of(request)
    now = time.monotonic()
    views = services.hub.views.values()
    return {"providers": [provider_json(view, now, services.settings.timings) for view in views]}


@router.get("/v1/fleet/{provider}")
async def one_provider(request: Request, provider: str, _: Reader) -> dict[str, Any]:
    """By id, or by name where only one has it."""
    services = services_of(request)
    views = services.hub.views
    named = [view for view in views.values() if view.name == provider]
    view = views.get(provider) or (named[0] if len(named) == 1 else None)
    if view is None:
        message = f"No provider {provider!r} is listed."
        raise Refusal(Failure(404, "invalid_request_error", "provider_not_found", message))
    return provider_json(view, time.monotonic(), services.settings.timings)


def provider_json(view: ProviderView, now_s: float, timings: Timings) -> dict[str, Any]:
    return {
        "id": view.provider_id,
        "name": view.name,
        "state": _state(view, presence(view, now_s, timings)),
        "version": view.version,
        "backend": view.backend,
        "generation": view.generation,
        "silent_s": round(now_s - view.heard_s, 3),
        "hardware": view.hardware.model_dump(),
        "thermal": view.thermal,
        "memory": None if view.memory is None else view.memory.model_dump(),
        "stats": view.stats.model_dump(),
        "slots": [slot.model_dump() for slot in view.slots.values()],
        "requests_held": len(view.holds),
        "models": [{**ad.model_dump(), **_routability(view, name, now_s, timings)} for name, ad in view.models.items()],
    }


def _state(view: ProviderView, here: Presence) -> str:
    return "draining" if here is Presence.ALIVE and view.draining else here.value


def _routability(view: ProviderView, model: str, now_s: float, timings: Timings) -> dict[str, Any]:
    verdict = judge(Wanted(model, prompt_tokens=0), view, now_s, timings)
    reason = verdict.value if isinstance(verdict, Reason) else None
    return {"routable": reason is None, "reason": reason}
