"""Sends a job's outcome to its client: a stream or one object, and the job ends when the client goes away."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from coordinator import log
from coordinator.api.errors import answer
from coordinator.api.notices import Notices, notice_event
from coordinator.dispatch import Client
from coordinator.job import Done, Job
from provider.api.events import events_of
from provider.api.wire import Failure, internal_error
from provider.protocol import NoticeKind

Run = Callable[[Job, Client], Coroutine[Any, Any, Done | Failure]]

LAST_WRITE_S = 5
EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Relay(Response):
    """`run` does the job, handing its chunks to the client it is given."""

    def __init__(self, run: Run, job: Job, notices: Notices) -> None:
        super().__init__()
        self._run = run
        self._job = job
        self._notices = notices if job.stream else Notices.OFF

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Events(send, self._job, self._notices)
        job = asyncio.create_task(self._run(self._job, client))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
            if job.done():
                await self._finish(_result(job), client, scope, receive, send)
        finally:
            job.cancel()
            gone.cancel()
            await asyncio.wait({job, gone})

    async def _finish(
        self, result: Done | Failure, client: "_Events", scope: Scope, receive: Receive, send: Send
    ) -> None:
        match result:
            case Failure() if not client.started:
                await answer(result, self._job.endpoint)(scope, receive, send)
            case Done(body) if not self._job.stream:
                await JSONResponse(body)(scope, receive, send)
            case Failure():
                await client.fail(result)
            case Done():
                await client.end()


class _Events:
    """A server-sent event stream that starts with its first event."""

    def __init__(self, send: Send, job: Job, notices: Notices) -> None:
        self._send = send
        self._job = job
        self._notices = notices
        self._form = events_of(job.endpoint)
        self._last: dict[str, Any] | None = None
        self.started = False

    async def chunk(self, data: dict[str, Any]) -> None:
        self._last = data
        await self._write(self._form.chunk(data))

    async def notice(self, kind: NoticeKind) -> None:
        event = notice_event(self._notices, kind, self._job, self._last)
        if event is not None:
            await self._write(event)

    async def fail(self, failure: Failure) -> None:
        await self.end(self._form.failed(failure))

    async def end(self, last: bytes = b"") -> None:
        """A client that does not read is left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITE_S):
                await self._write(last + self._form.end(), more=False)

    async def _write(self, body: bytes, more: bool = True) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _result(job: asyncio.Task[Done | Failure]) -> Done | Failure:
    """The task boundary of a job: a stream that has begun ends with a typed error whatever went wrong."""
    try:
        return job.result()
    except Exception as error:
        log.failure("job_failed", error)
        return internal_error("The coordinator has failed at this request.")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
