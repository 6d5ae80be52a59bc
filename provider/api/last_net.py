"""The last net: what no route foresaw becomes an answer like any other."""

import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from provider.api.events import form_path
from provider.api.stream import failure_response
from provider.api.wire import internal_error

log = logging.getLogger(__name__)


class LastNet:
    """Answers 500 in the form of the API that was called. Whatever stands around it gives such an answer its id and
    its other headers, and the connection goes on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if scope["type"] != "http" or begun:
                raise  # the connection is cut, so that a client sees that its answer is not whole
            request_id = scope.get("state", {}).get("request_id")
            log.error("request failed id=%s path=%r", request_id, scope["path"], exc_info=error)
            path = form_path(scope["path"], Headers(scope=scope))
            await failure_response(internal_error("The server failed at this request."), path)(scope, receive, send)
