"""Reads a JSON object of bounded size, which is all that the coordinator asks of a generation's body."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from coordinator.api.errors import Refusal
from provider.api.decoding import STRICT, too_complex, uncollected, unreadable_number
from provider.api.wire import MAX_BODY_BYTES, body_too_large, invalid_request, nested_too_deeply

Body = TypeVar("Body", bound=BaseModel)
HALF_A_PAIR = re.compile(rb"\\u[dD]")
"""JSON can spell half of a surrogate pair, which has no UTF-8."""


async def read_object(request: Request) -> dict[str, Any]:
    """Raises Refusal: 413, whether or not the length was announced, or 400."""
    return parse_object(await _read(request))


async def read(request: Request, kind: type[Body]) -> Body:
    """Raises Refusal."""
    return _validated(await read_object(request), kind)


async def read_or_default(request: Request, kind: type[Body]) -> Body:
    """No body at all is an empty one. Raises Refusal."""
    body = await _read(request)
    return _validated(parse_object(body) if body.strip() else {}, kind)


def _validated(value: dict[str, Any], kind: type[Body]) -> Body:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        field = kind.model_fields.get(where)
        if first["type"] == "missing" or (field is not None and field.is_required() and value.get(where) is None):
            raise Refusal(invalid_request(f"{where}: Field required", where, "missing_required_parameter")) from None
        raise Refusal(invalid_request(f"{where}: {first['msg']}" if where else first["msg"], where or None)) from None


def described(kind: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """The body of a route that uses `read`, for OpenAPI: without references, which would point nowhere there."""
    schema = kind.model_json_schema()
    whole = _inlined(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": whole}}}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(reference)}:
            return _inlined(definitions[reference.rpartition("/")[2]], definitions)
        case dict():
            return {key: _inlined(value, definitions) for key, value in schema.items()}
        case list():
            return [_inlined(value, definitions) for value in schema]
        case _:
            return schema


async def _read(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise Refusal(body_too_large())
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(body_too_large())
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises Refusal for anything that could not be sent on as UTF-8 JSON."""
    if refused := too_complex(body):
        raise Refusal(refused)
    try:
        with uncollected():
            value = STRICT.decode(body.decode())
        if HALF_A_PAIR.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Refusal(nested_too_deeply()) from None
    except UnicodeEncodeError:
        half = "The body holds one half of a surrogate pair (such as \\ud800), which is no character."
        raise Refusal(invalid_request(half, code="invalid_json")) from None
    except ValueError as error:
        if (wrong := unreadable_number(body)) is not None:
            raise Refusal(wrong) from None
        raise Refusal(invalid_request(f"The body is not valid JSON: {error}", code="invalid_json")) from None
    if not isinstance(value, dict):
        raise Refusal(invalid_request("The body must be a JSON object.", code="invalid_json"))
    return value
