"""GET /v1/fleet: what the coordinator knows of each provider, and why it is (not) routable."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request

from coordinator import mirror
from coordinator.api.auth import requires, services_of
from coordinator.api.errors import Refusal
from coordinator.config import Timings
from coordinator.fleet import Noted, Presence, ProviderView, presence
from coordinator.routing import Reason, judge
from coordinator.routing import Request as Wanted
from coordinator.services import Services
from coordinator.store.records import MemoryTables, Token, TokenKind
from provider.api.wire import Failure
from provider.protocol import ModelAd

router = APIRouter()
Reader = Annotated[Token, Depends(requires(TokenKind.API, TokenKind.ADMIN))]


@router.get("/v1/fleet")
async def fleet(request: Request, _: Reader) -> dict[str, Any]:
    services = services_of(request)
    now = time.monotonic()
    return {"providers": [_shown(services, view, now) for view in services.hub.views.values()]}


@router.get("/v1/fleet/{provider}")
async def one_provider(request: Request, provider: str, _: Reader) -> dict[str, Any]:
    """By id, or by name where only one has it."""
    services = services_of(request)
    return _shown(services, provider_named(services, provider), time.monotonic())


def provider_named(services: Services, provider: str) -> ProviderView:
    """By id, or by name where only one has it. Raises Refusal."""
    views = services.hub.views
    named = [view for view in views.values() if view.name == provider]
    view = views.get(provider) or (named[0] if len(named) == 1 else None)
    if view is None:
        message = f"No provider {provider!r} is listed."
        raise Refusal(Failure(404, "invalid_request_error", "provider_not_found", message))
    return view


def _shown(services: Services, view: ProviderView, now_s: float) -> dict[str, Any]:
    return provider_json(view, now_s, services.settings.timings, services.reference.tables)


def provider_json(view: ProviderView, now_s: float, timings: Timings, tables: MemoryTables) -> dict[str, Any]:
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
        "reserve": _reserve(view, tables),
        "stats": view.stats.model_dump(),
        "slots": [slot.model_dump() for slot in view.slots.values()],
        "requests_held": len(view.holds) + len(view.counted),
        "parked": sum(slot.parked for slot in view.slots.values()),
        "models": [_model(view, ad, now_s, timings, tables) for ad in view.models.values()],
        "loads": [_noted(note, now_s) for note in view.loads.values()],
        "prefetches": [_noted(note, now_s) for note in view.prefetches.values()],
        "cooldowns": _cooldowns(view, now_s),
    }


def _state(view: ProviderView, here: Presence) -> str:
    return "draining" if here is Presence.ALIVE and view.draining else here.value


def _reserve(view: ProviderView, tables: MemoryTables) -> dict[str, Any]:
    found = mirror.reserve(view, tables)
    source = "reported" if found.reported else "mirrored"
    return {"activation_reserve_bytes": found.activation_reserve_bytes, "source": source}


def _model(view: ProviderView, ad: ModelAd, now_s: float, timings: Timings, tables: MemoryTables) -> dict[str, Any]:
    """`fits` is of the idle machine; `cold_load` of now, had it to be loaded."""
    verdict = judge(Wanted(ad.id, prompt_tokens=0), view, now_s, timings, tables)
    reason = verdict.value if isinstance(verdict, Reason) else None
    plan = mirror.plan(view, ad, tables)
    return {
        **ad.model_dump(),
        "routable": reason is None,
        "reason": reason,
        "token_budget": mirror.token_budget(view, ad, tables),
        "cold_load": mirror.cold_load(view, ad).value,
        "required_bytes": plan.required_bytes,
        "fits": plan.fits,
    }


def _noted(note: Noted, now_s: float) -> dict[str, Any]:
    return {**note.message.model_dump(exclude={"type"}), "age_s": round(now_s - note.at_s, 3)}


def _cooldowns(view: ProviderView, now_s: float) -> list[dict[str, Any]]:
    active = [(model, one) for model, one in view.cooldowns.items() if one.active(now_s)]
    return [
        {"model_id": model, "refusals": one.refusals, "for_s": round(one.until_s - now_s, 3)} for model, one in active
    ]
