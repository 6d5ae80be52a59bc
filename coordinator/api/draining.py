"""POST /v1/admin/providers/{provider}/drain: no more requests for a provider, until the order is taken back."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request

from coordinator import log
from coordinator.api.auth import requires, services_of
from coordinator.api.body import described, read_or_default
from coordinator.api.errors import Refusal
from coordinator.api.fleet import provider_named
from coordinator.fleet import ProviderView
from coordinator.services import Services
from coordinator.store.records import Token, TokenKind
from provider.api.wire import Failure

router = APIRouter(responses={"default": {"description": "An error, in OpenAI's form."}})
Operator = Annotated[Token, Depends(requires(TokenKind.ADMIN))]
LOOK_EVERY_S = 0.1


class Drain(BaseModel):
    """`drain` false takes the order back. No body at all is an order."""

    model_config = ConfigDict(extra="forbid", strict=True)

    drain: bool = True


@router.post("/v1/admin/providers/{provider}/drain", openapi_extra=described(Drain, required=False))
async def drain(request: Request, provider: str, operator: Operator, wait: bool = False) -> dict[str, Any]:
    """Send the provider nothing more; what it has goes on. With `wait=true`, answer when nothing of ours is left there.

    The order is stored: it holds for all coordinators of the database, for new connections and after restarts, until
    it is taken back."""
    wanted = await read_or_default(request, Drain)
    services = services_of(request)
    provider_id = provider_named(services, provider).provider_id
    await services.store.order_drain(provider_id, wanted.drain, operator.id, datetime.now(UTC))
    services.reference.drained(provider_id, wanted.drain)
    log.event("drain", provider=provider_id, drain=wanted.drain, key=operator.id)
    if wait and wanted.drain:
        await _until_empty(services, provider_id)
    view = services.hub.views.get(provider_id)
    status = "draining" if view is None or view.draining else "active"
    return {"provider": provider_id, "status": status, "requests": _open(view)}


async def _until_empty(services: Services, provider_id: str) -> None:
    """Raises Refusal when it takes too long; the order stands."""
    within_s = services.settings.timings.load_s
    try:
        async with asyncio.timeout(within_s):
            while True:
                if not _open(services.hub.views.get(provider_id)):
                    return
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        left = _open(services.hub.views.get(provider_id))
        message = f"{left} requests are still running after {within_s:.0f} s; the provider goes on draining."
        raise Refusal(Failure(504, "internal_error", "deadline_exceeded", message)) from None


def _open(view: ProviderView | None) -> int:
    """Requests of ours that are with the provider."""
    return 0 if view is None else len(view.holds) + len(view.counted)
