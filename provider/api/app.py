"""The HTTP API of one provider, without a coordinator."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from random import Random, SystemRandom
from typing import Any, Literal, Protocol, cast

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from provider.api.access import EVERYBODY, Access, KeyGate, RateGate
from provider.api.body import json_object
from provider.api.events import COUNT_TOKENS, MESSAGES, MODELS, RESPONSES, form_path
from provider.api.last_net import LastNet
from provider.api.messages_body import CountBody, MessagesBody
from provider.api.methods import allowed_methods
from provider.api.model_list import ListedModel, model_list, model_object
from provider.api.openapi import SCHEMA_REF, document
from provider.api.request_id import RequestIds
from provider.api.requests import ChatBody, CompletionBody
from provider.api.responses_body import ResponsesBody
from provider.api.settings import ExactConcurrency, add_settings
from provider.api.stream import AnswerResponse, NoticeMode, failure_response, notice_mode
from provider.api.surface import Surface
from provider.api.wire import CLIENT_LEFT, no_such_path, wrong_method
from provider.errors import RequestFailed
from provider.generation import ServedModel, Serving

Health = Literal["ok", "starting", "stalled", "draining"]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

GENERATION: dict[str, tuple[str, type[BaseModel]]] = {
    "/v1/chat/completions": ("create_chat_completion", ChatBody),
    "/v1/completions": ("create_completion", CompletionBody),
    RESPONSES: ("create_response", ResponsesBody),
    MESSAGES: ("create_message", MessagesBody),
    COUNT_TOKENS: ("count_message_tokens", CountBody),
}
"""The name and the body of each route that has a body."""

SERVING_STATES: tuple[Health, ...] = ("ok", "draining")


class ProviderStatus(ExactConcurrency, Protocol):
    """What the API tells of the provider itself."""

    def health(self) -> Health: ...

    def props(self) -> dict[str, Any]: ...

    async def slots(self) -> list[dict[str, Any]]: ...

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        ...


def create_app(
    serving: Serving,
    status: ProviderStatus,
    *,
    access: Access = EVERYBODY,
    notices: NoticeMode = "comment",
    clock: Callable[[], float] = time.time,
    random: Random | None = None,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """`notices` is the mode of requests that name none."""
    drawn = random or SystemRandom()
    app = FastAPI(title="darkbloom-py", version=version("darkbloom-py"), redirect_slashes=False, lifespan=lifespan)
    _add_generation(app, Surface(serving, clock, drawn), notices)
    _add_models(app, serving, created=int(clock()))
    _add_status(app, status)
    add_settings(app, status)
    _add_errors(app)
    _add_gates(app, access, drawn)
    app.openapi = lambda: _openapi(app, bool(access.keys))  # type: ignore[method-assign]  # FastAPI's documented way
    return app


def _add_gates(app: FastAPI, access: Access, random: Random) -> None:
    """The last one added is the first to see a request."""
    if access.requests_per_minute is not None:
        app.add_middleware(RateGate, requests_per_minute=access.requests_per_minute, keyed=bool(access.keys))
    if access.keys:
        app.add_middleware(KeyGate, keys=access.keys)
    app.add_middleware(LastNet)
    if access.origins:
        # A browser asks without a key whether it may ask, and reads refusals only where they allow it to.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=["*"],
            expose_headers=["X-Request-ID", "request-id", "Retry-After"],
            max_age=600,
        )
    app.add_middleware(RequestIds, random=random)


def _add_generation(app: FastAPI, surface: Surface, notices: NoticeMode) -> None:
    async def answer(request: Request) -> Response:
        mode = notice_mode(request.headers, notices)
        body = await json_object(request)
        return AnswerResponse(await surface.open(request.url.path, body), mode)

    for path, (name, shape) in GENERATION.items():
        app.post(path, name=name, openapi_extra=_takes(shape))(answer)


def _add_models(app: FastAPI, serving: Serving, created: int) -> None:
    def listed(model: ServedModel) -> ListedModel:
        return ListedModel(model.id, created, model.n_ctx)

    @app.get(MODELS)
    async def list_models(request: Request) -> dict[str, Any]:
        return model_list([listed(model) for model in serving.models()], request.headers)

    @app.get(MODELS + "/{model_id:path}")
    async def get_model(request: Request, model_id: str) -> dict[str, Any]:
        return model_object(listed(serving.model(model_id)), request.headers)


def _add_status(app: FastAPI, status: ProviderStatus) -> None:
    @app.get("/health")
    async def get_health() -> Response:
        health = status.health()
        return JSONResponse({"status": health}, 200 if health in SERVING_STATES else 503)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(status.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/props")
    async def get_props() -> dict[str, Any]:
        return status.props()

    @app.get("/slots")
    async def get_slots() -> list[dict[str, Any]]:
        return await status.slots()


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestFailed)
    async def refused(request: Request, error: Exception) -> Response:
        failure = cast(RequestFailed, error).failure  # Starlette calls it for this type alone
        return failure_response(failure, _form(request))

    @app.exception_handler(HTTPException)
    async def not_here(request: Request, error: Exception) -> Response:
        wrong = cast(HTTPException, error)  # as above
        path = request.url.path
        failure = wrong_method(request.method, path) if wrong.status_code == 405 else no_such_path(path)
        response = failure_response(failure, _form(request))
        response.headers.update(wrong.headers or {})
        if wrong.status_code == 405:
            response.headers["Allow"] = allowed_methods(request)
        return response

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)


def _form(request: Request) -> str:
    return form_path(request.url.path, request.headers)


def _takes(shape: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": SCHEMA_REF.format(model=shape.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _openapi(app: FastAPI, keyed: bool) -> dict[str, Any]:
    """The bodies are read by hand, so their shapes are added by hand."""
    if app.openapi_schema is None:
        app.openapi_schema = document(app, [shape for _, shape in GENERATION.values()], keyed)
    return app.openapi_schema
