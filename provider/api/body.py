"""Reads the JSON object a request carries."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request

from provider.api.decoding import too_complex, uncollected, unreadable_number
from provider.api.wire import MAX_BODY_BYTES, Failure, body_too_large, invalid_request, nested_too_deeply
from provider.errors import RequestFailed

DISCARD_BYTES = 4 * MAX_BODY_BYTES
"""How much of an oversized body is read on: a client sees an answer only once it has sent its body."""

BODY_WITHIN_S = 120.0
"""A body that has not come by then never will, or it is sent to keep the connection."""


async def json_object(request: Request) -> dict[str, Any]:
    """Raises RequestFailed: 413 for a body over the limit, 408 for one that does not come, 400 for one that is no JSON
    object."""
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            body = await _body(request)
    except TimeoutError:
        message = f"The body has not come within {BODY_WITHIN_S:.0f} s."
        raise RequestFailed(Failure(408, "invalid_request_error", "request_timeout", message)) from None
    return _decoded(body)


async def _body(request: Request) -> bytes:
    """The length is counted, not believed: a chunked body announces none. One that announces too much is not waited
    for."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise RequestFailed(body_too_large())
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > DISCARD_BYTES:
            break
        if size <= MAX_BODY_BYTES:
            parts.append(part)
        else:
            parts.clear()
    if size > MAX_BODY_BYTES:
        raise RequestFailed(body_too_large())
    return b"".join(parts)


def _decoded(body: bytes) -> dict[str, Any]:
    if refused := too_complex(body):
        raise RequestFailed(refused)
    try:
        with uncollected():
            value = msgspec.json.decode(body)
    except RecursionError:
        raise RequestFailed(nested_too_deeply()) from None
    except (msgspec.MsgspecError, ValueError) as error:
        if (wrong := unreadable_number(body)) is not None:
            raise RequestFailed(wrong) from None
        raise RequestFailed(invalid_request(f"The body is not valid JSON: {error}", code="invalid_json")) from None
    if not isinstance(value, dict):
        raise RequestFailed(invalid_request("The body must be a JSON object.", code="invalid_json"))
    return value
