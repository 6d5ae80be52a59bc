"""The one place where a failure becomes an HTTP answer, in the form of the API that was called."""

from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from coordinator.errors import StoreDown
from provider.api.events import error_body, form_path
from provider.api.methods import allowed_methods
from provider.api.wire import (
    CLIENT_LEFT,
    Failure,
    internal_error,
    invalid_request,
    no_such_path,
    unavailable,
    wrong_method,
)


class Refusal(Exception):
    """Ends a request with `failure`; `headers` go with it."""

    def __init__(self, failure: Failure, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.headers = headers or {}


def answer(failure: Failure, path: str) -> Response:
    return JSONResponse(error_body(path, failure), failure.status, failure.headers())


def install(app: FastAPI) -> None:
    app.add_exception_handler(Refusal, _answer)
    app.add_exception_handler(StoreDown, _answer)
    app.add_exception_handler(RequestValidationError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(ClientDisconnect, _left)


async def _left(_: Request, __: Exception) -> Response:
    """Amid its body, or with one that is no HTTP: for the log alone."""
    return Response(status_code=CLIENT_LEFT)


async def _answer(request: Request, error: Exception) -> Response:
    path = request.url.path
    response = answer(failure_of(error, request.method, path), form_path(path, request.headers))
    if isinstance(error, Refusal):
        response.headers.update(error.headers)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["Allow"] = allowed_methods(request)
    return response


def failure_of(error: Exception, method: str, path: str) -> Failure:
    match error:
        case Refusal():
            return error.failure
        case StoreDown():
            return store_down()
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            return invalid_request(f"{where}: {first['msg']}", where)
        case HTTPException(status_code=404):
            return no_such_path(path)
        case HTTPException(status_code=405):
            return wrong_method(method, path)
        case HTTPException():
            return Failure(error.status_code, "invalid_request_error", "http_error", error.detail)
        case _:
            return internal_error("The coordinator has failed at this request.")


def store_down() -> Failure:
    return unavailable("The store of keys does not answer.", "store_unavailable", retry_after_s=2)


def unauthorized(message: str) -> Failure:
    return Failure(401, "authentication_error", "invalid_api_key", message)


def wrong_kind(kind: str, wanted: str) -> Failure:
    message = f"This is a key of kind {kind}; the route takes {wanted}."
    return Failure(403, "permission_error", "wrong_key_kind", message)
