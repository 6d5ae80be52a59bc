"""One API key in front of an app."""

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from provider.api.stream import failure_response
from provider.api.wire import Failure

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""What machines that watch this one ask without a key."""


class ApiKeyGate:
    """Answers 401 to a request without the key, as `Authorization: Bearer` or `x-api-key`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._admits(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "A valid API key is required: send it as `Authorization: Bearer KEY`."
        failure = Failure(401, "authentication_error", "invalid_api_key", message)
        response = failure_response(failure, scope["path"])
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(sent.encode(), self._api_key)
