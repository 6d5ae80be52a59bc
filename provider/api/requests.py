"""The bodies of generation requests, as OpenAI shapes them, with the extensions accepted in each.

Unknown fields are ignored; a known one with a wrong value is refused by name, as is one that is not supported.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, WithJsonSchema, model_validator

from provider.api.response_format import ResponseFormat
from provider.api.shape import Item, Listed, Shape, Unsupported, must_be, refuse_unsupported, refused
from provider.api.tool_choice import ChosenTool
from provider.api.wire import Failure, invalid_request
from provider.errors import RequestFailed

MAX_STOPS = 64
"""OpenAI takes 4; what a step costs does not depend on their number, but their table's memory does."""

MAX_STOP_CHARS = 1024
MAX_CHOICES = 128
"""As OpenAI's `n`."""

MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
"""Both as OpenAI's."""

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions; a chat has none."""

Body = TypeVar("Body", bound="GenerationBody")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
Stop = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)],
    must_be(f"a string or a list of at most {MAX_STOPS}, each of 1 to {MAX_STOP_CHARS} characters"),
]
Prompts = Annotated[list[Item], Field(max_length=MAX_CHOICES, fail_fast=True)]
Prompt = Annotated[
    str | Listed[int] | Prompts[str] | Prompts[Listed[int]],
    must_be(f"a string, a list of token ids, or a list of at most {MAX_CHOICES} of either"),
]
Content = Annotated[str | Listed[dict[str, Any]], must_be("a string, null or a list of content parts")]
Arguments = Annotated[str | dict[str, Any], must_be("a JSON string or an object")]


MAX_BIAS = 100


def _biases(bias: dict[str, Any]) -> dict[str, Any]:
    """The first wrong value is enough, as in `Listed`."""
    for key, value in bias.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_BIAS:
            raise refused(f"logit_bias.{key[:64]}", f"must be a number from -{MAX_BIAS} to {MAX_BIAS}")
    return bias


def _labels(metadata: dict[str, Any]) -> dict[str, Any]:
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise refused(f"metadata.{key[:64]}", "must be a string")
    return metadata


LogitBias = Annotated[
    dict[str, Any],
    AfterValidator(_biases),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        }
    ),
]
Metadata = Annotated[
    dict[str, Any],
    AfterValidator(_labels),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


class StreamOptions(Shape):
    include_usage: bool | None = None


MAX_TOKENS = 2**31 - 1
"""Beyond any context; a larger number is a mistake."""


class GenerationBody(Shape):
    """What every generation request may hold. `unsupported`: what other APIs have, and this one has not."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = {}

    model: str
    stream: bool | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: LogitBias | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_it_has_not(cls, body: Any) -> Any:
        refuse_unsupported(body, cls.unsupported)
        return body

    @property
    def stops(self) -> list[str]:
        return []

    @property
    def choices(self) -> int:
        """How many answers there are to one prompt."""
        return 1

    @property
    def logprobs_asked(self) -> int | None:
        """How many of the likeliest tokens are told beside each; None: no probabilities."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of its own for the usage."""
        return False


class ChoicesBody(GenerationBody):
    """What both APIs with choices may hold."""

    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Stop | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "is allowed only with `stream: true`")
        return self

    @property
    def stops(self) -> list[str]:
        return stops_of(self.stop)

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ToolFunction(Shape):
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Shape):
    """Checks a tool only, as `Message` does."""

    type: Literal["function"]
    function: ToolFunction


class CalledFunction(Shape):
    name: str
    arguments: Arguments | None = None


class CalledTool(Shape):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Shape):
    """Checks a message only: the template gets it as it was sent, with members not named here."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: Listed[CalledTool] | None = None
    tool_call_id: str | None = None


class ChatBody(ChoicesBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = {"best_of": Unsupported((None, 1))}

    messages: Listed[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    tools: Listed[Tool] | None = None
    tool_choice: ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    reasoning_effort: Effort | None = None
    user: str | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    service_tier: str | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_supported(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs", "is allowed only with `logprobs: true`")
        return self

    @property
    def logprobs_asked(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens` is the newer name of `max_tokens`; the smaller wins when both are given."""
        given = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        return min(given, default=None)

    @property
    def template_kwargs(self) -> dict[str, Any]:
        return {**effort_kwargs(self.reasoning_effort), **(self.chat_template_kwargs or {})}


class CompletionBody(ChoicesBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        "top_logprobs": Unsupported((None, 0), "is not supported here: `logprobs` says how many"),
    }

    prompt: Prompt
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_COMPLETION_LOGPROBS)
    suffix: str | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_supported(self) -> Self:
        if self.best_of not in (None, 1):
            raise refused("best_of", "is not supported")
        if self.echo:
            raise refused("echo", "is not supported")
        if self.suffix:
            raise refused("suffix", "is not supported")
        return self

    @property
    def logprobs_asked(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        token_ids = [item for item in self.prompt if isinstance(item, int)]
        if token_ids or not self.prompt:
            return [token_ids]
        return [item for item in self.prompt if not isinstance(item, int)]


def stops_of(stop: str | list[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or [])


def effort_kwargs(effort: Effort | None) -> dict[str, Any]:
    """What templates know it as: a switch (Qwen), or a degree (gpt-oss)."""
    match effort:
        case None:
            return {}
        case "none":
            return {"enable_thinking": False}
        case _:
            return {"enable_thinking": True, "reasoning_effort": effort}


def parse(shape: type[Body], body: Mapping[str, Any]) -> Body:
    """Raises RequestFailed (400) naming the first field that is wrong, as `messages[0].role`."""
    try:
        return shape.model_validate(body)
    except ValidationError as error:
        raise RequestFailed(_failure(error)) from None


OBJECT_WANTED = frozenset(["model_type", "model_attributes_type", "dict_type"])
"""Errors whose own words are of Python."""


def _failure(error: ValidationError) -> Failure:
    first = error.errors(include_url=False, include_input=False)[0]
    param = first.get("ctx", {}).get("field") or _path(first["loc"])
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
    message = "must be an object" if first["type"] in OBJECT_WANTED else first["msg"]
    return invalid_request(f"{param}: {message}", param, code)


def _path(location: Sequence[int | str]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")
