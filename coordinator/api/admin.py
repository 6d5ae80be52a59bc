"""What operators order: loading, unloading and prefetching at one provider, and the models that all should hold."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, assert_never

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator import log
from coordinator.api.auth import requires, services_of
from coordinator.api.body import described, read
from coordinator.api.errors import Refusal
from coordinator.api.fleet import provider_named
from coordinator.orders import Awaited, End, Order, Outcome, failure_code, lacked_memory
from coordinator.refusals import not_served
from coordinator.services import Services
from coordinator.store.records import Desired, DesiredList, Pool, Token, TokenKind
from provider.api.wire import Failure, memory_refused, unavailable
from provider.protocol import DIGEST_FORM, DesiredModel, LoadModel, LoadModelStatus, PrefetchModel, UnloadModel
from provider.wire_limits import MOST_NAMED

router = APIRouter(responses={"default": {"description": "An error, in OpenAI's form."}})
Operator = Annotated[Token, Depends(requires(TokenKind.ADMIN))]
Text = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Digest = Annotated[str, Field(pattern=DIGEST_FORM)]
MAX_POOLS = 100
EVERYBODY = "*"
Warm = Annotated[int, Field(ge=0, le=100_000)]


class _Body(BaseModel):
    """An unknown field is refused: an operator's slip of the pen should not pass for an order."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Model(_Body):
    model: Text


class Prefetch(_Body):
    """`source` is a path or an id that the provider can resolve; `digest` is of the weights."""

    model: Text
    source: Text
    digest: Digest | None = None


class PoolOrder(_Body):
    """`providers` is a glob over the names of providers, or the id of one."""

    providers: Text
    min_warm: Warm


class DesiredModelOrder(_Body):
    """`min_warm` is of the whole fleet: one pool of everybody."""

    id: Text
    source: Text
    digest: Digest | None = None
    min_warm: Warm = 0
    pools: list[PoolOrder] = Field(default_factory=list, max_length=MAX_POOLS)

    @model_validator(mode="after")
    def _pools_apart(self) -> "DesiredModelOrder":
        if self.min_warm and self.pools:
            raise ValueError("min_warm and pools: give one of them")
        if len({pool.providers for pool in self.pools}) < len(self.pools):
            raise ValueError("pools: the same providers come twice")
        return self

    @property
    def desired(self) -> Desired:
        told = self.pools or ([PoolOrder(providers=EVERYBODY, min_warm=self.min_warm)] if self.min_warm else [])
        pools = tuple(Pool(pool.providers, pool.min_warm) for pool in told)
        return Desired(DesiredModel(id=self.id, source=self.source, digest=self.digest), pools)


class DesiredOrder(_Body):
    models: list[DesiredModelOrder] = Field(max_length=MOST_NAMED)

    @model_validator(mode="after")
    def _once(self) -> "DesiredOrder":
        if len({one.id for one in self.models}) < len(self.models):
            raise ValueError("models: an id comes twice")
        return self


ENDS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Done."},
    202: {"description": "Sent, and not waited for (`wait=false`)."},
    404: {"description": "No such provider, or no such model there."},
    502: {"description": "The provider has failed at it; the message says why."},
    503: {"description": "The provider is not connected, or was lost meanwhile."},
    504: {"description": "It took too long; it may still succeed."},
}
LOAD_ENDS = {**ENDS, 507: {"description": "Not enough memory: `required_bytes` and `free_bytes` say how much."}}


@router.post("/v1/admin/providers/{provider}/load", openapi_extra=described(Model), responses=LOAD_ENDS)
async def load(request: Request, provider: str, _: Operator, wait: bool = True) -> Response:
    """Load a model that the provider advertises; it may unload an idle one for it."""
    services = services_of(request)
    order = LoadModel(model_id=(await read(request, Model)).model)
    return await _ordered(services, provider, order, services.settings.timings.load_s if wait else None)


@router.post("/v1/admin/providers/{provider}/unload", openapi_extra=described(Model), responses=ENDS)
async def unload(request: Request, provider: str, _: Operator, wait: bool = True) -> Response:
    """Unload a model; it is done when a heartbeat no longer has a slot for it."""
    services = services_of(request)
    order = UnloadModel(model_id=(await read(request, Model)).model)
    view = provider_named(services, provider)
    if order.model_id not in view.models and order.model_id not in view.slots:
        raise Refusal(not_served(order.model_id, sorted(view.models)))
    return await _ordered(services, provider, order, services.settings.timings.load_s if wait else None)


@router.post(
    "/v1/admin/providers/{provider}/prefetch",
    status_code=202,
    openapi_extra=described(Prefetch),
    responses={404: ENDS[404], 503: ENDS[503]},
)
async def prefetch(request: Request, provider: str, _: Operator) -> Response:
    """Have a provider download and verify a model; `GET /v1/fleet/{provider}` shows how far it is."""
    wanted = await read(request, Prefetch)
    services = services_of(request)
    provider_id = provider_named(services, provider).provider_id
    order = PrefetchModel(model_id=wanted.model, source=wanted.source, digest=wanted.digest)
    _send(services, provider_id, order)
    return _answer(provider_id, order, "sent", 202)


@router.get("/v1/admin/desired-models")
async def desired_models(request: Request, _: Operator) -> dict[str, Any]:
    """Revision 0: none has ever been set."""
    return _desired(await services_of(request).store.desired())


@router.put("/v1/admin/desired-models", openapi_extra=described(DesiredOrder))
async def desire(request: Request, operator: Operator) -> dict[str, Any]:
    """Replace the list, and tell every provider: a provider obeys the highest revision that it has heard of. Of a model
    with `min_warm` so many providers are kept loaded."""
    wanted = await read(request, DesiredOrder)
    services = services_of(request)
    made = await services.store.desire([one.desired for one in wanted.models], operator.id, datetime.now(UTC))
    services.reference.desire(made)
    return {"revision": made.revision}


def _desired(desired: DesiredList | None) -> dict[str, Any]:
    if desired is None:
        return {"revision": 0, "models": []}
    return {"revision": desired.revision, "models": [_desired_model(one) for one in desired.models]}


def _desired_model(desired: Desired) -> dict[str, Any]:
    pools = [{"providers": pool.providers, "min_warm": pool.min_warm} for pool in desired.pools]
    return {**desired.model.model_dump(), "pools": pools}


async def _ordered(services: Services, provider: str, order: Awaited, within_s: float | None) -> Response:
    """`within_s` None: not waited for."""
    provider_id = provider_named(services, provider).provider_id
    with services.hub.orders.awaiting(provider_id, order) as ending:
        _send(services, provider_id, order)
        if within_s is None:
            return _answer(provider_id, order, "sent", 202)
        try:
            async with asyncio.timeout(within_s):
                outcome = await ending
        except TimeoutError:
            raise Refusal(_late(order, within_s)) from None
    return _ended(provider_id, order, outcome)


def _send(services: Services, provider_id: str, order: Order) -> None:
    """Raises Refusal."""
    log.event(order.type, provider=provider_id, model=order.model_id)
    if not services.hub.tell(provider_id, order):
        message = f"The provider {provider_id!r} is not connected."
        raise Refusal(unavailable(message, "provider_disconnected", retry_after_s=5))


def _ended(provider_id: str, order: Awaited, outcome: Outcome) -> Response:
    match outcome:
        case LoadModelStatus(status="succeeded"):
            return _answer(provider_id, order, "loaded", 200)
        case LoadModelStatus():
            raise Refusal(_failed(outcome))
        case End.UNLOADED:
            return _answer(provider_id, order, "unloaded", 200)
        case End.PROVIDER_LOST:
            raise Refusal(unavailable("The connection to the provider was lost.", "provider_lost", retry_after_s=5))
        case _:
            assert_never(outcome)


def _answer(provider_id: str, order: Order, status: str, code: int) -> Response:
    return JSONResponse({"provider": provider_id, "model": order.model_id, "status": status}, code)


def _failed(status: LoadModelStatus) -> Failure:
    """With the provider's own reason."""
    message = f"{status.model_id!r}: {status.reason or 'the provider gives no reason'}"
    if lacked_memory(status):
        detail = {"required_bytes": status.required_bytes, "free_bytes": status.free_bytes}
        return memory_refused(message, detail, explicit=True)
    match failure_code(status):
        case "model_not_found":
            return Failure(404, "invalid_request_error", "model_not_found", message, "model")
        case "draining" | "slot_state" as code:
            return unavailable(message, code, retry_after_s=5)
        case _:
            return Failure(502, "internal_error", "load_failed", message, "model")


def _late(order: Awaited, within_s: float) -> Failure:
    message = f"The provider has not finished with {order.model_id!r} within {within_s:.0f} s; it may still."
    return Failure(504, "internal_error", "deadline_exceeded", message)
