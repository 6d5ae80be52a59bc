"""GET /health and /metrics: of this process, for anyone."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator.api.auth import services_of, started
from coordinator.services import Health

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    services = started(request)
    state = Health.STARTING if services is None else services.health()
    status = 200 if state in (Health.OK, Health.DRAINING) else 503
    return JSONResponse({"status": state.value}, status)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    page = services_of(request).hub.metrics.page()
    return Response(page, headers={"content-type": CONTENT_TYPE_LATEST})
