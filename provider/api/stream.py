"""Sends an answer over HTTP: whole as JSON, or as server-sent events.

The status goes out with the first chunk or notice, so that what fails before is a real status; and a client
that leaves cancels its generation in whatever state it is.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Literal, assert_never, cast, get_args

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from provider.api.events import Events, error_body, events_of
from provider.api.surface import Answer, Chunk, Complete, NoticeItem
from provider.api.wire import Failure, internal_error, invalid_request, sse_comment
from provider.errors import RequestFailed

log = logging.getLogger(__name__)

NoticeMode = Literal["comment", "chunk", "off"]
NOTICES_HEADER = "X-Darkbloom-Notices"

WRITE_WITHIN_S = 120.0
"""A client that has taken nothing for so long is as good as gone: its answer would hold room for ever."""

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Asks nginx not to hold back what should arrive token by token.
    (b"x-accel-buffering", b"no"),
]


def notice_mode(headers: Mapping[str, str], default: NoticeMode) -> NoticeMode:
    """Raises RequestFailed for a header that names no mode."""
    wanted = headers.get(NOTICES_HEADER, default)
    if wanted not in get_args(NoticeMode):
        accepted = ", ".join(get_args(NoticeMode))
        raise RequestFailed(invalid_request(f"{NOTICES_HEADER}: must be one of {accepted}.", NOTICES_HEADER))
    return cast(NoticeMode, wanted)  # checked above; mypy does not narrow a str by get_args


def failure_response(failure: Failure, path: str) -> Response:
    """In the form of the API that the request's `path` belongs to."""
    return JSONResponse(error_body(path, failure), failure.status, failure.headers())


class AnswerResponse(Response):
    """Owns the answer: it is closed when this has been sent, or can no longer be."""

    def __init__(self, answer: Answer, notices: NoticeMode) -> None:
        super().__init__()
        self._answer = answer
        self._notices = notices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(scope, receive, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = _EventStream(send, events_of(scope["path"]))
        try:
            async with aclosing(self._answer.items()) as items:
                async for item in items:
                    match item:
                        case Chunk(data=data):
                            await events.chunk(data)
                        case NoticeItem(kind):
                            await self._notice(kind, events)
                        case Complete(None):
                            await events.end()
                        case Complete(body):
                            await JSONResponse(body)(scope, receive, send)
                        case _:
                            assert_never(item)
        except _Stalled:
            log.warning("client stalled seconds=%.0f", WRITE_WITHIN_S)
        except Exception as error:
            failure = _failure(error)
            if events.begun:
                await events.fail(failure)
            else:
                await failure_response(failure, scope["path"])(scope, receive, send)

    async def _notice(self, kind: str, events: "_EventStream") -> None:
        if not self._answer.streaming:
            return
        match self._notices:
            case "comment":
                await events.comment(kind)
            case "chunk":
                await events.chunk(self._answer.empty_chunk())
            case "off":
                pass
            case _:
                assert_never(self._notices)


class _EventStream:
    """The status goes out with the first event; each event at once."""

    def __init__(self, send: Send, events: Events) -> None:
        self._send = send
        self._events = events
        self.begun = False

    async def chunk(self, data: Mapping[str, Any]) -> None:
        await self._write(self._events.chunk(data))

    async def comment(self, text: str) -> None:
        await self._write(sse_comment(text))

    async def fail(self, failure: Failure) -> None:
        await self._write(self._events.failed(failure))
        await self.end()

    async def end(self) -> None:
        await self._write(self._events.end(), more=False)

    async def _write(self, body: bytes, more: bool = True) -> None:
        """Raises _Stalled."""
        try:
            async with asyncio.timeout(WRITE_WITHIN_S):
                if not self.begun:
                    self.begun = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise _Stalled from None


class _Stalled(Exception):
    """The client does not read."""


def _failure(error: Exception) -> Failure:
    if isinstance(error, RequestFailed):
        return error.failure
    log.error("answer failed", exc_info=error)
    return internal_error("The server failed at this request.")


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
