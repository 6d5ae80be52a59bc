"""What the OpenAPI document of either server says beyond what FastAPI can know: every answer, errors among them."""

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from provider.api import answers
from provider.api.events import COUNT_TOKENS, MESSAGES, MODELS, RESPONSES

Json = dict[str, Any]
SCHEMA_REF = "#/components/schemas/{model}"
NOTICES = {
    "name": "X-Darkbloom-Notices",
    "in": "header",
    "required": False,
    "description": "How a stream tells that its chat waits for room.",
    "schema": {"type": "string", "enum": ["comment", "chunk", "off"]},
}
ANTHROPIC_VERSION = {
    "name": "anthropic-version",
    "in": "header",
    "required": False,
    "description": "Sent by Anthropic's clients: the answer has the form that they read.",
    "schema": {"type": "string"},
}
STREAM = {"text/event-stream": {"schema": {"type": "string", "description": "With `stream: true`: docs/api.md."}}}
WHOLE: dict[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (answers.ChatCompletion,),
    "/v1/completions": (answers.TextCompletion,),
    RESPONSES: (answers.ResponseAnswer,),
    MESSAGES: (answers.MessageAnswer,),
    COUNT_TOKENS: (answers.TokenCount,),
    MODELS: (answers.ModelList, answers.AnthropicModelList),
}
"""What a request that does not stream is answered."""

ONE_MODEL = (answers.Model, answers.AnthropicModel)
OPEN_PATHS = ("/health", "/metrics")
SECURITY: list[Json] = [{"bearer": []}, {"header": []}]
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(app: FastAPI, bodies: Sequence[type[BaseModel]] = (), keyed: bool = True) -> Json:
    """`bodies` are read by hand and named by reference; `keyed`: a key is asked for."""
    whole = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = whole.setdefault("components", {})
    components.setdefault("schemas", {}).update(_shapes(bodies))
    # FastAPI's own: a wrong parameter is a 400 here, like any other mistake.
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    if keyed:
        components["securitySchemes"] = SCHEMES
    for path, operation in _operations(whole):
        _describe(path, operation)
        if keyed and path not in OPEN_PATHS:
            operation["security"] = SECURITY
    return whole


def _shapes(bodies: Sequence[type[BaseModel]]) -> Json:
    shown = [one for shapes in WHOLE.values() for one in shapes]
    shown += [*ONE_MODEL, answers.Error, answers.AnthropicError, answers.Health]
    asked: Json = models_json_schema([(one, "validation") for one in bodies], ref_template=SCHEMA_REF)[1].get(
        "$defs", {}
    )
    told: Json = models_json_schema([(one, "serialization") for one in shown], ref_template=SCHEMA_REF)[1]["$defs"]
    assert not asked.keys() & told.keys()
    return {**asked, **told}


def _operations(whole: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in whole["paths"].items():
        for operation in methods.values():
            yield path, operation


def _describe(path: str, operation: Json) -> None:
    answered: Json = operation.setdefault("responses", {})
    answered.pop("422", None)
    answered.pop("default", None)
    parameters = operation.setdefault("parameters", [])
    if path in WHOLE:
        answered["200"] = _answer("The answer.", WHOLE[path])
        if path not in (MODELS, COUNT_TOKENS):
            answered["200"]["content"].update(STREAM)
            parameters.append(NOTICES)
    if path.startswith(MODELS):
        parameters.append(ANTHROPIC_VERSION)
        if path != MODELS:
            answered["200"] = _answer("The model.", ONE_MODEL)
    if path == "/health":
        answered["200"] = _answer("It serves.", (answers.Health,))
        answered["503"] = _answer("It does not serve now.", (answers.Health,))
    if path == "/metrics":
        answered["200"] = {
            "description": "Prometheus' text.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    for status in ("4XX", "5XX"):
        answered[status] = _answer("An error.", _errors(path))


def _errors(path: str) -> tuple[type[BaseModel], ...]:
    if path.startswith(MESSAGES):
        return (answers.AnthropicError,)
    return (answers.Error, answers.AnthropicError) if path.startswith(MODELS) else (answers.Error,)


def _answer(description: str, shapes: tuple[type[BaseModel], ...]) -> Json:
    refs = [{"$ref": SCHEMA_REF.format(model=shape.__name__)} for shape in shapes]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
