"""The form of the answer that a body asks for, API by API: what is named differently, and means the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from provider.api.answer_form import Choice, Form, Offered, ToolChoice
from provider.api.messages_body import CountBody
from provider.api.requests import ChatBody
from provider.api.responses_body import ResponsesBody
from provider.api.tool_choice import AllowedTools, FlatAllowedTools, FlatNamedTool, NamedTool

Json = Any
"""A decoded JSON value."""


def chat_form(body: Mapping[str, Json], chat: ChatBody) -> Form:
    """`body`: as it was sent, for the order of a schema's properties is that of the answer's."""
    schema = None if chat.response_format is None else chat.response_format.schema_asked
    chosen = _openai_choice(chat.tool_choice, chat.parallel_tool_calls)
    described = [(tool["function"], f"tools[{number}].function") for number, tool in _tools(body)]
    return Form(schema, "response_format.json_schema.schema", _offered(described, "parameters"), chosen)


def responses_form(body: Mapping[str, Json], parsed: ResponsesBody) -> Form:
    asked = None if parsed.text is None else parsed.text.format
    chosen = _openai_choice(parsed.tool_choice, parsed.parallel_tool_calls)
    described = [(tool, f"tools[{number}]") for number, tool in _tools(body)]
    schema = None if asked is None else asked.schema_asked
    return Form(schema, "text.format.schema", _offered(described, "parameters"), chosen)


def messages_form(body: Mapping[str, Json], parsed: CountBody) -> Form:
    described = [(tool, f"tools[{number}]") for number, tool in _tools(body)]
    asked = parsed.format_asked
    schema = None if asked is None else asked.schema_asked
    place = "output_format.schema" if parsed.output_format is not None else "output_config.format.schema"
    return Form(schema, place, _offered(described, "input_schema"), _anthropic_choice(parsed))


def _openai_choice(
    choice: str | NamedTool | AllowedTools | FlatNamedTool | FlatAllowedTools | None, parallel: bool | None
) -> ToolChoice:
    several = parallel is not False
    match choice:
        case NamedTool(function=function):
            return ToolChoice(Choice.REQUIRED, function.name, several, name_place="tool_choice.function.name")
        case FlatNamedTool(name=name):
            return ToolChoice(Choice.REQUIRED, name, several)
        case AllowedTools(allowed_tools=allowed):
            place = "tool_choice.allowed_tools.tools"
            names = {one.function.name: f"{place}[{number}].function.name" for number, one in enumerate(allowed.tools)}
            return ToolChoice(Choice(allowed.mode), several=several, allowed=names)
        case FlatAllowedTools(mode=mode, tools=tools):
            names = {one.name: f"tool_choice.tools[{number}].name" for number, one in enumerate(tools)}
            return ToolChoice(Choice(mode), several=several, allowed=names)
        case _:
            return ToolChoice(Choice(choice or "auto"), several=several)


def _anthropic_choice(parsed: CountBody) -> ToolChoice:
    choice = parsed.tool_choice
    if choice is None:
        return ToolChoice()
    kinds = {"auto": Choice.AUTO, "none": Choice.NONE, "any": Choice.REQUIRED, "tool": Choice.REQUIRED}
    return ToolChoice(kinds[choice.type], choice.name, choice.disable_parallel_tool_use is not True)


def _tools(body: Mapping[str, Json]) -> Sequence[tuple[int, Json]]:
    return list(enumerate(body.get("tools") or []))


def _offered(described: Sequence[tuple[Json, str]], parameters: str) -> list[Offered]:
    return [
        Offered(
            name=tool["name"],
            parameters=tool.get(parameters),
            strict=tool.get("strict") is True,
            name_place=f"{place}.name",
            parameters_place=f"{place}.{parameters}",
        )
        for tool, place in described
    ]
