"""Wires the routes into one ASGI application."""

import asyncio
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from coordinator.api import (
    admin,
    chat,
    draining,
    errors,
    fleet,
    health,
    keys,
    models,
    placement,
    provider,
    route,
    usage,
)
from coordinator.api.requests import Requests
from coordinator.services import Services
from provider.api.openapi import document


def create_app() -> FastAPI:
    """It is `starting` until it is `opened`."""
    app = FastAPI(title="darkbloom coordinator", version=version("darkbloom-py"))
    app.state.opened = asyncio.Event()
    errors.install(app)
    app.add_middleware(Requests)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way
    for part in (chat, models, route, fleet, admin, draining, keys, placement, usage, health, provider):
        app.include_router(part.router)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(app)
    return app.openapi_schema


def opened(app: FastAPI, services: Services) -> None:
    """From now on requests are served, and providers that dialled early are let in."""
    app.state.services = services
    app.state.opened.set()


def never_opened(app: FastAPI) -> None:
    """The providers that have dialled early need not wait any longer: it ends."""
    app.state.opened.set()
