"""Around every HTTP request: its id, one line in the log, one count, and the last net for what nobody caught."""

import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator import log
from coordinator.api.errors import answer, failure_of
from provider.api.events import form_path, id_headers

REQUEST_ID = "x-request-id"
PROBES = ("/health", "/metrics")
"""Counted, but not logged: they come every few seconds."""
USABLE = re.compile(r"(?!.*(?:dbk_|sk-))[\x21-\x7e]{1,128}")
"""Never a key that a client has put there by mistake: an id is logged."""


class Requests:
    """ASGI middleware. A request's id is the client's, where it sends a usable one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.monotonic()
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(
                    id_headers(form_path(scope["path"], Headers(scope=scope)), request_id)
                )
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            log.failure("request_failed", error, request_id=request_id)
            if not status:
                path = scope["path"]
                form = form_path(path, Headers(scope=scope))
                await answer(failure_of(error, scope["method"], path), form)(scope, receive, tagged)
        finally:
            _note(scope, request_id, status, time.monotonic() - started)
        return None


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if USABLE.fullmatch(given) else uuid.uuid4().hex


def _note(scope: Scope, request_id: str, status: int, took_s: float) -> None:
    """Status 0: the client went away before there was an answer."""
    route = getattr(scope.get("route"), "path", "none")
    state = scope.get("state", {})
    services = getattr(scope["app"].state, "services", None)
    if services is not None:
        services.hub.metrics.requests.labels(route, str(status)).inc()
    if route in PROBES:
        return
    log.event(
        "request",
        request_id=request_id,
        method=scope["method"],
        route=route,
        status=status,
        took_s=took_s,
        key=state.get("token_id"),
        job=state.get("job_id"),
    )
