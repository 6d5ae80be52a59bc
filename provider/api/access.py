"""Who may ask, and how often: the keys of one provider's API, and each caller's rate."""

import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from provider.api.events import form_path
from provider.api.stream import failure_response
from provider.api.wire import Failure

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""What machines that watch this one ask without a key."""

MAX_CALLERS = 10_000
"""Callers whose rates are remembered; the one that has been silent longest is forgotten."""


@dataclass(frozen=True, slots=True)
class Access:
    """Without keys everybody is let in. `origins` are those of web pages that may call; "*" is any."""

    keys: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    origins: tuple[str, ...] = ()


EVERYBODY = Access()


class KeyGate:
    """Answers 401 to a request without one of the keys, as `Authorization: Bearer` or `x-api-key`."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._admits(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "A valid API key is required: send it as `Authorization: Bearer KEY`."
        failure = Failure(401, "authentication_error", "invalid_api_key", message)
        response = failure_response(failure, form_path(scope["path"], Headers(scope=scope)))
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        sent = key_in(headers).encode()
        return any(hmac.compare_digest(sent, key) for key in self._keys)


class RateGate:
    """Answers 429 to a caller that generates more often than it may. A caller is a key, or else an address; it may
    use up a minute's requests at once."""

    def __init__(
        self, app: ASGIApp, requests_per_minute: int, keyed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._rate = requests_per_minute
        self._keyed = keyed
        self._clock = clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Of each caller: how many requests it had left, and when that was."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wait_s = self._wait_s(scope) if scope["type"] == "http" and scope["method"] == "POST" else 0
        if not wait_s:
            await self._app(scope, receive, send)
            return
        message = f"More than {self._rate} requests in a minute: try again in {wait_s} s."
        failure = Failure(429, "rate_limit_error", "rate_limit_exceeded", message, retryable=True, retry_after_s=wait_s)
        await failure_response(failure, form_path(scope["path"], Headers(scope=scope)))(scope, receive, send)

    def _wait_s(self, scope: Scope) -> int:
        """Whole seconds until the next request is allowed; 0 takes one."""
        now_s = self._clock()
        caller = self._caller(scope)
        left, then_s = self._callers.pop(caller, (float(self._rate), now_s))
        left = min(float(self._rate), left + (now_s - then_s) * self._rate / 60)
        allowed = left >= 1
        self._callers[caller] = (left - allowed, now_s)
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return 0 if allowed else max(1, math.ceil((1 - left) * 60 / self._rate))

    def _caller(self, scope: Scope) -> str:
        if self._keyed:
            return key_in(Headers(scope=scope))
        client = scope.get("client")
        return str(client[0]) if client else ""


def key_in(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
