"""The wire shapes both the provider's API and the coordinator speak: errors and server-sent events.

Standard library only, so that either side can import it at no cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_BODY_BYTES = 16 * 2**20
"""Largest request body (413 beyond it)."""
MAX_MODEL_NAME = 1024
"""Characters; a model may be named by its path."""
MAX_TOLD_NAME = 100

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Failure:
    """A refusal or failure as a value: the same object feeds the log, the metric and the HTTP body.

    `type` and `code` are closed vocabularies (docs/protocol.md); `detail` holds further members of the
    error object, such as `n_prompt_tokens`; `retryable` means another provider, or a later try, may succeed.
    """

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_s: int | None = None
    detail: Mapping[str, int | str | None] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The JSON body of an error answer, in OpenAI's form."""
        error = {"message": self.message, "type": self.type, "code": self.code, "param": self.param}
        return {"error": {**error, **self.detail}}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def invalid_request(message: str, param: str | None = None, code: str = "invalid_value") -> Failure:
    return Failure(400, "invalid_request_error", code, message, param)


def grammar_failed(reason: str) -> Failure:
    """The answer cannot go on within the form that was asked for."""
    message = f"The form that the answer was to have cannot be followed: {reason}."
    return invalid_request(message, code="grammar_failed")


def context_exceeded(n_prompt_tokens: int, n_ctx: int, message: str | None = None) -> Failure:
    """The prompt, or the chat as it has grown, cannot fit (OpenAI's 400 with llama.cpp's members)."""
    said = message or (
        f"The prompt has {n_prompt_tokens} tokens and the context holds {n_ctx}: "
        "shorten the prompt, or serve the model with a larger --context-length or --kv-pool-tokens."
    )
    detail = {"n_prompt_tokens": n_prompt_tokens, "n_ctx": n_ctx}
    return Failure(400, "exceed_context_size_error", "context_length_exceeded", said, detail=detail)


CLIENT_LEFT = 499
"""nginx's status of a request whose client went away before its body had come: nobody gets it."""


def body_too_large() -> Failure:
    return Failure(413, "invalid_request_error", "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")


def nested_too_deeply() -> Failure:
    return invalid_request("The body is nested too deeply.", code="invalid_json")


def no_such_path(path: str) -> Failure:
    return Failure(404, "invalid_request_error", "not_found", f"There is no {path} here.")


def wrong_method(method: str, path: str) -> Failure:
    return Failure(405, "invalid_request_error", "method_not_allowed", f"{path} does not take {method}.")


def wrong_model(model: object) -> Failure | None:
    """Of the name of a model in a body; both servers say the same of it."""
    if model is None:
        return invalid_request("model: the name of a model is required.", "model", "missing_required_parameter")
    if isinstance(model, str) and 0 < len(model) <= MAX_MODEL_NAME:
        return None
    return invalid_request(f"model: must be the name of a model, of 1 to {MAX_MODEL_NAME} characters.", "model")


def told_name(name: str) -> str:
    """As a message repeats what a client has sent."""
    return repr(name if len(name) <= MAX_TOLD_NAME else f"{name[:MAX_TOLD_NAME]}...")


def model_not_found(model: str, known: list[str]) -> Failure:
    names = ", ".join(known) or "none"
    message = f"The model {told_name(model)} is not served here. Served: {names}."
    return Failure(404, "invalid_request_error", "model_not_found", message, "model")


def queue_full(message: str, retry_after_s: int = 1) -> Failure:
    return Failure(429, "rate_limit_error", "queue_full", message, retryable=True, retry_after_s=retry_after_s)


def unavailable(message: str, code: str = "service_unavailable", retry_after_s: int = 1) -> Failure:
    return Failure(503, "service_unavailable", code, message, retryable=True, retry_after_s=retry_after_s)


def memory_refused(message: str, detail: Mapping[str, int | str | None], explicit: bool = False) -> Failure:
    """A model that is not loaded for want of memory; `explicit`: its loading was what was asked for (507)."""
    status = 507 if explicit else 503
    return Failure(
        status, "service_unavailable", "memory_cap", message, "model", retryable=True, retry_after_s=5, detail=detail
    )


def internal_error(message: str, code: str = "internal_error", retryable: bool = False) -> Failure:
    return Failure(500, "internal_error", code, message, retryable=retryable)


def sse_comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"
