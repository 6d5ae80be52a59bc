"""The bodies of `/v1/messages`, as Anthropic shapes them, and the question each asks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from provider.api.conversation import Message, Turn, arguments_of, refuse, text_of
from provider.api.question import Question, function_tool
from provider.api.requests import MAX_STOPS, MAX_TOKENS, GenerationBody, StopString
from provider.api.response_format import OutputFormat
from provider.api.shape import ONE_ANSWER, Listed, Shape, Unsupported, must_be, refused

Json = Any
"""A decoded JSON value."""

Blocks = Annotated[str | Listed[dict[str, Any]], must_be("a string or a list of content blocks")]
SERVER_FIELDS = ("container", "mcp_servers")
"""What only Anthropic's own servers can do."""


class AnthropicMessage(Shape):
    """Checks a message only: its blocks are read one by one, so that each can be named."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class AnthropicTool(Shape):
    """A tool of the client; those of Anthropic's servers have other types."""

    type: Literal["custom"] | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class AnthropicToolChoice(Shape):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _tool_is_named(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise refused("tool_choice.name", 'is required with type "tool", and allowed with no other')
        return self


class OutputConfig(Shape):
    format: OutputFormat | None = None


class Thinking(Shape):
    """`budget_tokens` is not counted: a model thinks until it has thought, or `max_tokens` ends it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class CountBody(GenerationBody):
    """What is counted is what would be asked."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        **dict.fromkeys(SERVER_FIELDS, Unsupported()),
        **dict.fromkeys(("n", "best_of"), ONE_ANSWER),
        **dict.fromkeys(("logprobs", "top_logprobs"), Unsupported((None, False, 0))),
    }

    messages: Listed[AnthropicMessage] = Field(min_length=1)
    system: Blocks | None = None
    tools: Listed[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    metadata: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    @property
    def format_asked(self) -> OutputFormat | None:
        """`output_format` is the older name."""
        return self.output_format or (None if self.output_config is None else self.output_config.format)

    @property
    def stops(self) -> list[str]:
        return list(self.stop_sequences or [])

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Without `thinking` it is the template that decides, as in a chat."""
        switch = {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        return {**switch, **(self.chat_template_kwargs or {})}


class MessagesBody(CountBody):
    max_tokens: int = Field(ge=1, le=MAX_TOKENS)


def question_of(body: Mapping[str, Json], parsed: CountBody) -> Question:
    """Raises RequestFailed (400) naming the block that cannot be read."""
    turns = []
    if body.get("system"):
        turns.append(Turn({"role": "system", "content": text_of(body["system"], "system")}, "system"))
    for index, message in enumerate(body["messages"]):
        turns += _turns(message, f"messages[{index}]")
    uncalled = parsed.tool_choice is not None and parsed.tool_choice.type == "none"
    tools = [] if uncalled else [function_tool(tool, "input_schema") for tool in body.get("tools") or []]
    return Question(turns, "messages", tools, parsed.template_kwargs, uncalled)


def _turns(message: Message, place: str) -> Iterator[Turn]:
    content = message["content"]
    if isinstance(content, str):
        yield Turn({"role": message["role"], "content": content}, place)
    elif message["role"] == "assistant":
        yield Turn(_assistant(content, place), place)
    else:
        yield from _asked(message["role"], content, place)


def _asked(role: str, blocks: list[Json], place: str) -> Iterator[Turn]:
    """Results of tools are messages of their own; what is said between them keeps its place."""
    texts: list[str] = []
    results = 0
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        if block.get("type") != "tool_result" or role != "user":
            texts.append(_text(block, where))
            continue
        if texts:
            yield Turn({"role": role, "content": "".join(texts)}, place)
            texts = []
        results += 1
        yield Turn(_result(block, where), place)
    if texts or not results:
        yield Turn({"role": role, "content": "".join(texts)}, place)


def _result(block: Json, place: str) -> Message:
    content = block.get("content")
    if not isinstance(content, str | list | None):
        refuse(f"{place}.content: must be a string or a list of content blocks.", f"{place}.content")
    call_id = _string(block, "tool_use_id", place)
    return {"role": "tool", "tool_call_id": call_id, "content": text_of(content, f"{place}.content")}


def _assistant(blocks: list[Json], place: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(_string(block, "thinking", where))
            case "tool_use":
                calls.append(_call(block, where))
            case "redacted_thinking":
                pass
            case _:
                texts.append(_text(block, where))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Json, place: str) -> Json:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        refuse(f"{place}.input: must be a JSON object.", f"{place}.input")
    function = {"name": _string(block, "name", place), "arguments": arguments_of(arguments, f"{place}.input")}
    return {"id": _string(block, "id", place), "type": "function", "function": function}


def _text(block: Json, place: str) -> str:
    kind = block.get("type")
    if kind != "text":
        refuse(f"{place}: a block of type {kind!r} cannot be read here: this model takes text only.", place)
    return _string(block, "text", place)


def _string(block: Json, name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        refuse(f"{place}.{name}: must be a string.", f"{place}.{name}")
    return value
