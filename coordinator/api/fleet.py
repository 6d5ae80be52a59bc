"""GET /v1/fleet: what the coordinator knows of each provider, and why it is (not) routable."""

import time
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from coordinator import mirror, routing
from coordinator.admission import Waiting
from coordinator.api.auth import requires, services_of
from coordinator.api.errors import Refusal
from coordinator.api.slices import json_object
from coordinator.breaker import BreakerState
from coordinator.config import Timings
from coordinator.details import detail
from coordinator.fleet import Noted, Presence, ProviderView, presence
from coordinator.gates import Codes
from coordinator.mirror import Reserve
from coordinator.reasons import REASONS, Reason
from coordinator.routing import Request as Wanted
from coordinator.services import Services
from coordinator.store.records import MemoryTables, Token, TokenKind
from coordinator.turns import Turns
from provider.api.events import encoded
from provider.api.wire import Failure
from provider.protocol import ModelAd

router = APIRouter()
MOST_DECISIONS = 20
MOST_NAMESAKES = 20
"""Told of in one message."""
AT_ONCE = 128
"""Models whose reasons are looked at in one turn of the event loop."""
Reader = Annotated[Token, Depends(requires(TokenKind.API, TokenKind.ADMIN))]


@router.get("/v1/fleet")
async def fleet(request: Request, _: Reader) -> Response:
    """Of one moment, though it is written over several turns of the event loop; but for the reasons of more models
    than can be looked at in one."""
    services = services_of(request)
    async with services.explaining:
        turns, shown = Turns(), Shown(services, time.monotonic(), services.hub.views.most_served(AT_ONCE))
        waiting = [_waiting(one) for one in services.dispatcher.admission.waiting()]
        providers = [await shown.provider(view, turns) for view in services.hub.views.copied().values()]
    answer = json_object(providers=b"[" + b",".join(providers) + b"]", waiting=encoded(waiting))
    return Response(answer, media_type="application/json")


@router.get("/v1/fleet/{provider}")
async def one_provider(request: Request, provider: str, _: Reader) -> Response:
    """By id, or by name where only one has it. With the last decisions for it that were sampled."""
    services = services_of(request)
    view, now_s = provider_named(services, provider), time.monotonic()
    decisions = services.dispatcher.decisions.of(view.provider_id)[:MOST_DECISIONS]
    told = {"decisions": [one.shown(now_s) for one in decisions]}
    async with services.explaining:
        answer = await Shown(services, now_s, islice(view.models, AT_ONCE)).provider(view, Turns(), **told)
    return Response(answer, media_type="application/json")


def provider_named(services: Services, provider: str) -> ProviderView:
    """By id, or by name where only one has it. Raises Refusal."""
    views = services.hub.views
    if provider in views:
        return views[provider]
    named = [view for view in views.values() if view.name == provider]
    if len(named) == 1:
        return named[0]
    if not named:
        message = f"No provider {provider!r} is listed: `GET /v1/fleet` shows those that are."
        raise Refusal(Failure(404, "invalid_request_error", "provider_not_found", message))
    now_s, timings = time.monotonic(), services.settings.timings
    ids = [f"{view.provider_id} ({presence(view, now_s, timings).value})" for view in named[:MOST_NAMESAKES]]
    more = f" and {len(named) - len(ids)} more" if len(named) > len(ids) else ""
    message = f"{len(named)} providers are named {provider!r}: use the id of one, {', '.join(ids)}{more}."
    raise Refusal(Failure(409, "invalid_request_error", "provider_ambiguous", message))


class Shown:
    """The fleet at one moment: the reasons of `models` as of now, those of others as of when they are asked for."""

    def __init__(self, services: Services, now_s: float, models: Iterable[str]) -> None:
        self._services = services
        self._now_s = now_s
        self._reasons = {model: self._reasons_of(model) for model in models}

    async def provider(self, view: ProviderView, turns: Turns, **more: Any) -> bytes:
        """JSON, with `more` at its end."""
        timings, tables = self._services.settings.timings, self._services.reference.tables
        known = mirror.reserve(view, tables)
        models = []
        for ad in view.models.values():
            reason = self._reason(ad.id, view.provider_id)
            models.append(encoded(_model(view, ad, self._now_s, tables, reason, known)))
            await turns.taken()
        told = {**provider_json(view, self._now_s, timings, known), **more}
        return json_object(
            **{name: encoded(value) for name, value in told.items()},
            models=b"[" + b",".join(models) + b"]",
        )

    def _reason(self, model: str, provider_id: str) -> Reason | None:
        """Of one that has left since, that it does not serve the model."""
        if model not in self._reasons:
            self._reasons[model] = self._reasons_of(model)
        rows, codes = self._reasons[model]
        if provider_id not in rows:
            return Reason.MODEL_NOT_SERVED
        code = int(codes[rows[provider_id]])
        return REASONS[code - 1] if code else None

    def _reasons_of(self, model: str) -> tuple[dict[str, int], Codes]:
        """The rows of providers, and their codes."""
        hub, timings = self._services.hub, self._services.settings.timings
        asked = Wanted(model, prompt_tokens=0)
        ids, codes = routing.reasons(asked, hub.views, self._now_s, timings, self._services.reference.tables)
        return {one: row for row, one in enumerate(ids)}, codes


def provider_json(view: ProviderView, now_s: float, timings: Timings, known: Reserve) -> dict[str, Any]:
    """All but its models."""
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
        "reserve": _reserve(known),
        "stats": view.stats.model_dump(),
        "slots": [slot.model_dump() for slot in view.slots.values()],
        "drain_ordered": view.drain_ordered,
        "requests_held": len(view.holds) + len(view.counted),
        "parked": sum(slot.parked for slot in view.slots.values()),
        "loads": [_noted(note, now_s) for note in view.loads.values()],
        "prefetches": [_noted(note, now_s) for note in view.prefetches.values()],
        "cooldowns": _cooldowns(view, now_s),
        "breakers": _breakers(view, now_s),
    }


def _state(view: ProviderView, here: Presence) -> str:
    return "draining" if here is Presence.ALIVE and view.draining else here.value


def _reserve(found: Reserve) -> dict[str, Any]:
    source = "reported" if found.reported else "mirrored"
    return {"activation_reserve_bytes": found.activation_reserve_bytes, "source": source}


def _model(
    view: ProviderView, ad: ModelAd, now_s: float, tables: MemoryTables, reason: Reason | None, known: Reserve
) -> dict[str, Any]:
    """`fits` is of the idle machine; `cold_load` of now, had it to be loaded; `reason` is why it would not be given a
    request now."""
    plan = mirror.plan(view, ad, tables, known)
    return {
        **ad.model_dump(),
        "routable": reason is None,
        "reason": reason,
        "detail": detail(reason, Wanted(ad.id, prompt_tokens=0), view, now_s, tables),
        "token_budget": mirror.token_budget(view, ad, tables, known),
        "cold_load": mirror.cold_load(view, ad).value,
        "required_bytes": plan.required_bytes,
        "fits": plan.fits,
    }


def _noted(note: Noted, now_s: float) -> dict[str, Any]:
    return {**note.message.model_dump(exclude={"type"}), "age_s": round(now_s - note.at_s, 3)}


def _waiting(one: Waiting) -> dict[str, Any]:
    """`eta_s`: when a load that is under way is predicted to be done; null where there is none."""
    eta_s = None if one.eta_s is None else round(one.eta_s, 3)
    return {"model": one.model, "requests": one.requests, "oldest_s": round(one.oldest_s, 3), "eta_s": eta_s}


def _cooldowns(view: ProviderView, now_s: float) -> list[dict[str, Any]]:
    active = [(model, one) for model, one in view.cooldowns.items() if one.active(now_s)]
    return [
        {"model_id": model, "refusals": one.refusals, "for_s": round(one.until_s - now_s, 3)} for model, one in active
    ]


def _breakers(view: ProviderView, now_s: float) -> list[dict[str, Any]]:
    return [
        {
            "model_id": model,
            "failures": one.failures,
            "state": state.value,
            "for_s": round(max(0.0, one.until_s - now_s), 3),
        }
        for model, one in view.breakers.items()
        if (state := one.state(now_s)) is not BreakerState.CLOSED
    ]
