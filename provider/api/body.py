"""Reads the JSON object a request carries."""

from typing import Any

import msgspec
from starlette.requests import Request

from provider.api.wire import MAX_BODY_BYTES, Failure, invalid_request
from provider.errors import RequestFailed

DISCARD_BYTES = 4 * MAX_BODY_BYTES
"""How much of an oversized body is read on: a client sees an answer only once it has sent its body."""


async def json_object(request: Request) -> dict[str, Any]:
    """Raises RequestFailed: 413 for a body over the limit, 400 for one that is no JSON object."""
    return _decoded(await _body(request))


async def _body(request: Request) -> bytes:
    """The length is counted, not believed: a chunked body announces none."""
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
        message = f"The body is larger than {MAX_BODY_BYTES} bytes."
        raise RequestFailed(Failure(413, "invalid_request_error", "body_too_large", message))
    return b"".join(parts)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise RequestFailed(invalid_request("The body is nested too deeply.", code="invalid_json")) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise RequestFailed(invalid_request(f"The body is not valid JSON: {error}", code="invalid_json")) from None
    if not isinstance(value, dict):
        raise RequestFailed(invalid_request("The body must be a JSON object.", code="invalid_json"))
    return value
