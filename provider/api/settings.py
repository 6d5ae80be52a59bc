"""Settings that can be changed while a provider runs: /v1/settings/exact-concurrency."""

from typing import Any, Protocol, get_args

from fastapi import FastAPI
from starlette.requests import Request

from provider.api.body import json_object
from provider.api.wire import invalid_request
from provider.errors import RequestFailed
from provider.exact.policy import Mode

EXACT = "/v1/settings/exact-concurrency"
MODES: tuple[Mode, ...] = get_args(Mode)
ACCEPTED = f"one of {', '.join(MODES)}, or null to clear what is stored"
MODE = {"type": ["string", "null"], "enum": [*MODES, None]}
SHAPE = {"type": "object", "properties": {"mode": MODE}, "required": ["mode"]}
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": SHAPE}}}}


class ExactConcurrency(Protocol):
    """Implemented by provider.status."""

    def exact_concurrency(self) -> dict[str, Any]:
        """What is stored, what the next load is told and by whom, and what is so now."""
        ...

    def want_exact_concurrency(self, mode: Mode | None) -> None:
        """Stored, or with None cleared; from the next load on. Raises RequestFailed."""
        ...


def add_settings(app: FastAPI, exact: ExactConcurrency) -> None:
    @app.get(EXACT)
    async def get_exact_concurrency() -> dict[str, Any]:
        return exact.exact_concurrency()

    @app.put(EXACT, openapi_extra=BODY)
    async def put_exact_concurrency(request: Request) -> dict[str, Any]:
        exact.want_exact_concurrency(mode_in(await json_object(request)))
        return exact.exact_concurrency()


def mode_in(body: dict[str, Any]) -> Mode | None:
    """None: what is stored is to be cleared. Raises RequestFailed."""
    if "mode" not in body:
        message = f"mode is missing: say {ACCEPTED}."
        raise RequestFailed(invalid_request(message, "mode", "missing_required_parameter"))
    if body["mode"] is None:
        return None
    for mode in MODES:
        if body["mode"] == mode:
            return mode
    raise RequestFailed(invalid_request(f"mode: must be {ACCEPTED}.", "mode"))
