"""How each API writes its errors and its streams. Both servers speak through it; standard library only.

One chunk of an answer is one JSON object whichever API it belongs to. Where an API names its events, the name is the
object's own `type`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from provider.api.wire import DONE, Failure

MESSAGES, COUNT_TOKENS, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
MODELS = "/v1/models"

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""https://docs.anthropic.com/en/api/errors; 503 is what that API answers with 529."""


EVENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What may stand as the name of an event, which is written as a line of its own."""
_PLAIN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ESCAPED = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Events(Protocol):
    """The writer of one stream: every chunk goes through it, in order."""

    def chunk(self, data: Mapping[str, Any]) -> bytes: ...

    def failed(self, failure: Failure) -> bytes:
        """The error of a stream that has begun."""
        ...

    def end(self) -> bytes:
        """What follows the last event, in order or after an error."""
        ...


def events_of(path: str) -> Events:
    """`path` is that of the request."""
    if path == RESPONSES:
        return ResponsesEvents()
    return MessagesEvents() if speaks_anthropic(path) else DataEvents()


def error_body(path: str, failure: Failure) -> dict[str, Any]:
    """The JSON body of an error answer, in the form of the API that `path` belongs to."""
    return anthropic_error(failure) if speaks_anthropic(path) else failure.body()


def of_anthropic(headers: Mapping[str, str]) -> bool:
    """Whether one of Anthropic's clients asks: they all send this one."""
    return "anthropic-version" in headers


def form_path(path: str, headers: Mapping[str, str]) -> str:
    """The path whose form a client expects: that of its request, but for a path that both kinds of client ask."""
    shared = path == MODELS or path.startswith(MODELS + "/")
    return MESSAGES if shared and of_anthropic(headers) else path


def speaks_anthropic(path: str) -> bool:
    return path == MESSAGES or path.startswith(MESSAGES + "/")


def anthropic_error(failure: Failure) -> dict[str, Any]:
    """Anthropic's form, with our code and what belongs to it beside."""
    kind = ANTHROPIC_TYPES.get(failure.status, "api_error" if failure.status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": failure.message, "code": failure.code, "param": failure.param}
    return {"type": "error", "error": {**error, **failure.detail}}


def id_headers(path: str, request_id: str) -> dict[str, str]:
    """Anthropic's clients look for the id of a request under a name of their own."""
    own = {"request-id": request_id} if speaks_anthropic(path) else {}
    return {"X-Request-ID": request_id, **own}


class DataEvents:
    """Chats and completions: no names, and `[DONE]` at the end."""

    def chunk(self, data: Mapping[str, Any]) -> bytes:
        return b"data: " + encoded(data) + b"\n\n"

    def failed(self, failure: Failure) -> bytes:
        return self.chunk(failure.body())

    def end(self) -> bytes:
        return DONE


class MessagesEvents:
    """Anthropic's: a stream ends with its last event."""

    def chunk(self, data: Mapping[str, Any]) -> bytes:
        return named_event(data)

    def failed(self, failure: Failure) -> bytes:
        return named_event(anthropic_error(failure))

    def end(self) -> bytes:
        return b""


class ResponsesEvents:
    """OpenAI's responses: every event is numbered, so an error needs the last number, and the response as it began."""

    def __init__(self) -> None:
        self._response: Mapping[str, Any] | None = None
        self._number = -1

    def chunk(self, data: Mapping[str, Any]) -> bytes:
        response, number = data.get("response"), data.get("sequence_number")
        if self._response is None and isinstance(response, Mapping):
            self._response = response
        if isinstance(number, int):
            self._number = number
        return named_event(data)

    def failed(self, failure: Failure) -> bytes:
        told = {"code": failure.code, "message": failure.message, "param": failure.param}
        error = {"type": "error", "sequence_number": self._number + 1, **told}
        if self._response is None:
            return named_event(error)
        response = {**self._response, "status": "failed", "error": response_error(failure)}
        failed = {"type": "response.failed", "sequence_number": self._number + 2, "response": response}
        return named_event(error) + named_event(failed)

    def end(self) -> bytes:
        return b""


def response_error(failure: Failure) -> dict[str, Any]:
    """OpenAI has a closed set of codes for it; ours are in the `error` event before, and named `reason` here."""
    code = "rate_limit_exceeded" if failure.status == 429 else "server_error"
    if failure.status < 500 and failure.status != 429:
        code = "invalid_prompt"
    told = {"code": code, "message": failure.message, "param": failure.param, "type": failure.type}
    return {**told, "reason": failure.code}


def unnameable(path: str, data: Mapping[str, Any]) -> bool:
    """Whether a chunk of an answer to `path` has no name where that API names its events."""
    if path != RESPONSES and not speaks_anthropic(path):
        return False
    return not _nameable(data.get("type"))


def _nameable(name: object) -> bool:
    return isinstance(name, str) and EVENT_NAME.fullmatch(name) is not None


def named_event(data: Mapping[str, Any]) -> bytes:
    """The name is the `type`, which is one of this API's own words; what could not be a name is none."""
    name = data.get("type", "message")
    line = f"event: {name}\n".encode() if _nameable(name) else b""
    return line + b"data: " + encoded(data) + b"\n\n"


def encoded(data: object) -> bytes:
    """JSON on one line. Half of a surrogate pair has no UTF-8, but JSON can still spell it. Raises ValueError for a
    number that is not finite, which JSON has no word for."""
    try:
        return _PLAIN.encode(data).encode()
    except UnicodeEncodeError:
        return _ESCAPED.encode(data).encode()
