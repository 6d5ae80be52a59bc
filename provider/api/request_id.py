"""Names every HTTP request, and logs it under that name."""

import logging
import re
import time
from collections.abc import Callable
from random import Random

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from provider.api.events import form_path, id_headers
from provider.api.job import new_id

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
# It is written to logs: nothing that could forge a line, and no key that a client has put there by mistake.
_ACCEPTED = re.compile(r"(?!.*(?:dbk_|sk-))[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """The client's id, or a new one where it sent none that is usable, is echoed and logged."""

    def __init__(self, app: ASGIApp, random: Random, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._random = random
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = self._request_id(headers.get(REQUEST_ID_HEADER, ""))
        scope.setdefault("state", {})["request_id"] = request_id
        started_s = self._clock()
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(id_headers(form_path(scope["path"], headers), request_id))
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            log.info(
                "request id=%s method=%s path=%r status=%s seconds=%.3f",
                *(request_id, scope["method"], scope["path"], status or "none", self._clock() - started_s),
            )

    def _request_id(self, sent: str) -> str:
        return sent if _ACCEPTED.fullmatch(sent) else new_id("req-", self._random)
