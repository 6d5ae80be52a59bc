"""Wires the routes into one ASGI application."""

from importlib.metadata import version

from fastapi import FastAPI

from coordinator.api import chat, errors, fleet, health, models, provider
from coordinator.api.requests import Requests


def create_app() -> FastAPI:
    """It is `starting` until whoever serves it sets `app.state.services`."""
    app = FastAPI(title="darkbloom coordinator", version=version("darkbloom-py"))
    errors.install(app)
    app.add_middleware(Requests)
    for part in (chat, models, fleet, health, provider):
        app.include_router(part.router)
    return app
