"""The form of the answer that a body asks for, API by API: what is named differently, and means the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from provider.api.answer_form import Choice, Form, Offered, ToolChoice
from provider.api.messages_body import CountBody
from provider.api.requests import ChatBody, NamedTool
from provider.api.responses_body import FlatNamedTool, ResponsesBody

Json = Any
"""A decoded JSON value."""


def chat_form(body: Mapping[str, Json], chat: ChatBody) -> Form:
    """`body`: as it was sent, for the order of a schema's properties is that of the answer's."""
    schema = None if chat.response_format is None else chat.response_format.schema_asked
    choice = chat.tool_choice
    name = choice.function.name if isinstance(choice, NamedTool) else None
    kind = Choice.REQUIRED if isinstance(choice, NamedTool) else Choice(choice or "auto")
    chosen = ToolChoice(kind, name, chat.parallel_tool_calls is not False)
    described = [(tool["function"], f"tools[{number}].function") for number, tool in _tools(body)]
    return Form(schema, "response_format.json_schema.schema", _offered(described, "parameters"), chosen)


def responses_form(body: Mapping[str, Json], parsed: ResponsesBody) -> Form:
    asked = None if parsed.text is None else parsed.text.format
    choice = parsed.tool_choice
    name = choice.name if isinstance(choice, FlatNamedTool) else None
    kind = Choice.REQUIRED if isinstance(choice, FlatNamedTool) else Choice(choice or "auto")
    chosen = ToolChoice(kind, name, parsed.parallel_tool_calls is not False)
    described = [(tool, f"tools[{number}]") for number, tool in _tools(body)]
    schema = None if asked is None else asked.schema_asked
    return Form(schema, "text.format.schema", _offered(described, "parameters"), chosen)


def messages_form(body: Mapping[str, Json], parsed: CountBody) -> Form:
    described = [(tool, f"tools[{number}]") for number, tool in _tools(body)]
    asked = parsed.format_asked
    schema = None if asked is None else asked.schema_asked
    place = "output_format.schema" if parsed.output_format is not None else "output_config.format.schema"
    return Form(schema, place, _offered(described, "input_schema"), _anthropic_choice(parsed))


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
