"""The bodies of `/v1/responses`, as OpenAI shapes them, and the question each asks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from provider.api.conversation import Message, Turn, arguments_of, refuse, text_of
from provider.api.question import Question, function_tool
from provider.api.requests import (
    MAX_TOKENS,
    MAX_TOP_LOGPROBS,
    Effort,
    GenerationBody,
    Metadata,
    Stop,
    effort_kwargs,
    stops_of,
)
from provider.api.response_format import TextFormat
from provider.api.shape import ONE_ANSWER, Listed, Shape, Unsupported, must_be, refused
from provider.api.tool_choice import FlatChosenTool

Json = Any
"""A decoded JSON value."""

STORED = ("previous_response_id", "conversation", "prompt", "background")
"""What needs a server that stores answers."""
LOGPROBS = "message.output_text.logprobs"
LOGPROBS_ASKED = f'`include: ["{LOGPROBS}"]`'
ROLES = ("system", "developer", "user", "assistant")


class FunctionTool(Shape):
    type: Literal["function"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ReasoningOptions(Shape):
    effort: Effort | None = None


class TextOptions(Shape):
    format: TextFormat | None = None


class ResponsesBody(GenerationBody):
    """`stop` is ours: OpenAI's responses have none."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        **dict.fromkeys(STORED, Unsupported()),
        **dict.fromkeys(("n", "best_of"), ONE_ANSWER),
        "logprobs": Unsupported((None, False), f"is not supported here: ask with {LOGPROBS_ASKED}"),
    }

    input: Annotated[str | Listed[dict[str, Any]], must_be("a string or a list of items"), Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    tools: Listed[FunctionTool] | None = None
    tool_choice: FlatChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    stop: Stop | None = None
    metadata: Metadata | None = None
    user: str | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    include: Listed[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs and self.logprobs_asked is None:
            raise refused("top_logprobs", f"is allowed only with {LOGPROBS_ASKED}")
        return self

    @property
    def logprobs_asked(self) -> int | None:
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or []) else None

    @property
    def stops(self) -> list[str]:
        return stops_of(self.stop)

    @property
    def effort(self) -> Effort | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def template_kwargs(self) -> dict[str, Any]:
        return {**effort_kwargs(self.effort), **(self.chat_template_kwargs or {})}


def question_of(body: Mapping[str, Json], parsed: ResponsesBody) -> Question:
    """Raises RequestFailed (400) naming the item that cannot be read."""
    turns = []
    if parsed.instructions:
        turns.append(Turn({"role": "system", "content": parsed.instructions}, "instructions"))
    asked = body["input"]
    if isinstance(asked, str):
        turns.append(Turn({"role": "user", "content": asked}, "input"))
    else:
        turns += _turns(asked)
    if not turns:
        refuse("input: there is nothing in it to answer.", "input")
    uncalled = parsed.tool_choice == "none"
    tools = [] if uncalled else [function_tool(tool, "parameters") for tool in body.get("tools") or []]
    return Question(turns, "input", tools, parsed.template_kwargs, uncalled)


@dataclass(slots=True)
class _Answer:
    """What a model said in one turn, which is one message to a template and several items here: its reasoning, its
    text and its calls, in this order."""

    place: str
    reasoning: list[str] = field(default_factory=list)
    text: str | None = None
    calls: list[Json] = field(default_factory=list)

    def turns(self) -> list[Turn]:
        """None of reasoning that led to nothing."""
        if self.text is None and not self.calls:
            return []
        message: Message = {"role": "assistant", "content": self.text or ""}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return [Turn(message, self.place)]


def _turns(items: list[Json]) -> Iterator[Turn]:
    answer: _Answer | None = None
    for number, item in enumerate(items):
        place = f"input[{number}]"
        kind = _kind(item, place)
        if answer is not None and not _goes_on(answer, kind, item):
            yield from answer.turns()
            answer = None
        match kind:
            case "message" if item["role"] != "assistant":
                yield Turn({"role": item["role"], "content": _content(item, place)}, place)
            case "function_call_output":
                yield Turn(_output(item, place), place)
            case _:
                answer = answer or _Answer(place)
                _add(answer, kind, item, place)
    if answer is not None:
        yield from answer.turns()


def _goes_on(answer: _Answer, kind: str, item: Json) -> bool:
    match kind:
        case "message":
            return bool(item["role"] == "assistant" and answer.text is None and not answer.calls)
        case "reasoning":
            return answer.text is None and not answer.calls
        case "function_call":
            return True
        case _:
            return False


def _add(answer: _Answer, kind: str, item: Json, place: str) -> None:
    match kind:
        case "message":
            answer.text = _content(item, place)
        case "function_call":
            answer.calls.append(_call(item, place))
        case _:
            answer.reasoning += _reasoning(item)


def _kind(item: Json, place: str) -> str:
    """A message needs no type. Raises RequestFailed for what is no item of a chat."""
    kind = item.get("type") or "message"
    if kind not in ("message", "function_call", "function_call_output", "reasoning"):
        refuse(f"{place}.type: items of type {kind!r} are not supported.", f"{place}.type")
    if kind == "message" and item.get("role") not in ROLES:
        refuse(f"{place}.role: must be one of {', '.join(ROLES)}.", f"{place}.role")
    return str(kind)


def _content(item: Json, place: str) -> str:
    return _text(item.get("content"), f"{place}.content")


def _output(item: Json, place: str) -> Message:
    call_id = _string(item, "call_id", place)
    return {"role": "tool", "tool_call_id": call_id, "content": _text(item.get("output"), f"{place}.output")}


def _text(content: Json, place: str) -> str:
    if not isinstance(content, str | list):
        refuse(f"{place}: must be a string or a list of content parts.", place)
    return text_of(content, place)


def _call(item: Json, place: str) -> Json:
    arguments = arguments_of(item.get("arguments"), f"{place}.arguments")
    function = {"name": _string(item, "name", place), "arguments": arguments}
    return {"id": _string(item, "call_id", place), "type": "function", "function": function}


def _reasoning(item: Json) -> list[str]:
    """What was thought, where it is written out: summaries and sealed thoughts are not what the model said."""
    parts = item.get("content")
    if not isinstance(parts, list):
        return []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "reasoning_text"]
    return [text for text in texts if isinstance(text, str)]


def _string(item: Json, name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        refuse(f"{place}.{name}: must be a string.", f"{place}.{name}")
    return value


def echo_of(body: Mapping[str, Json], parsed: ResponsesBody) -> dict[str, Json]:
    """What the response repeats of its request; nothing is stored, whatever was asked."""
    tools = [{"parameters": None, "strict": None, **tool} for tool in body.get("tools") or []]
    likeliest = {} if parsed.logprobs_asked is None else {"top_logprobs": parsed.logprobs_asked}
    return {
        **likeliest,
        "instructions": parsed.instructions,
        "max_output_tokens": parsed.max_output_tokens,
        "metadata": parsed.metadata or {},
        "parallel_tool_calls": parsed.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": parsed.effort, "summary": None},
        "store": False,
        "temperature": 1.0 if parsed.temperature is None else parsed.temperature,
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": tools,
        "top_p": 1.0 if parsed.top_p is None else parsed.top_p,
        "truncation": "disabled",
    }
