"""What form the answer of a chat has to have, whichever API asks: a value of a schema, calls of tools, or both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

from provider.api.parameter_types import is_text, types_of
from provider.api.prompt import ChatPrompt
from provider.api.wire import invalid_request, told_name
from provider.errors import RequestFailed, SchemaRefused
from provider.grammar.answer import Calls, Thinking, answer_grammar
from provider.grammar.json_schema import Check, Schema, usable
from provider.grammar.rules import Rules
from provider.grammar.tool_rules import Markup, ToolSchema, call_rule

Json = Any
"""A decoded JSON value."""


class Choice(Enum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`name`: that tool, once. `several`: more than one call in an answer; `place`: of the choice in the request.
    `allowed`: no tools but these, each with its own place in the request; `name_place`: of `name`."""

    choice: Choice = Choice.AUTO
    name: str | None = None
    several: bool = True
    place: str = "tool_choice"
    name_place: str = "tool_choice.name"
    allowed: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as the request has it. `strict`: its arguments have to fit its schema, whoever calls it."""

    name: str
    parameters: Json
    strict: bool
    name_place: str
    parameters_place: str


@dataclass(frozen=True, slots=True)
class Form:
    """`schema` None: no value is asked for; `place`: of the schema."""

    schema: Json = None
    place: str = ""
    tools: Sequence[Offered] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)


def grammar_of_answer(form: Form, prompt: ChatPrompt, template: str | None, check: Check) -> str | None:
    """None where anything may be said. Raises RequestFailed (400) naming what cannot be held to."""
    try:
        value = None if form.schema is None else usable(form.schema, form.place, check)
        calls = _calls(form, value, Markup.XML if "<function=" in (template or "") else Markup.JSON, check)
        if value is None and calls is None:
            return None
        only_calls = form.choice.choice is Choice.REQUIRED
        place = form.place if value is not None and not only_calls else "tools"
        return answer_grammar(_thinking(prompt), None if only_calls else value, calls, place, check)
    except SchemaRefused as error:
        raise RequestFailed(invalid_request(str(error), error.place, "invalid_schema")) from None


def _thinking(prompt: ChatPrompt) -> Thinking:
    if prompt.thinking:
        return Thinking.BEGUN
    return Thinking.OFFERED if prompt.may_think else Thinking.DONE


def _calls(form: Form, value: Schema | None, markup: Markup, check: Check) -> Calls | None:
    choice = form.choice
    match choice.choice:
        case Choice.NONE:
            return None
        case Choice.REQUIRED:
            tools = [_tool(tool, markup, check, lenient=False) for tool in _chosen(form)]
            return Calls(tools, markup, choice.several and choice.name is None, talk=False)
        case Choice.AUTO:
            allowed = _allowed(form)
            fewer = len(allowed) < len(form.tools)
            guided = value is not None or fewer or not choice.several or any(tool.strict for tool in allowed)
            if not form.tools or not guided:
                return None
            tools = [_tool(tool, markup, check, lenient=not tool.strict) for tool in allowed]
            return Calls(tools, markup, choice.several, talk=value is None)


def _chosen(form: Form) -> Sequence[Offered]:
    choice = form.choice
    if not form.tools:
        _refuse(choice.place, "a tool has to be called, and `tools` names none")
    if choice.name is None:
        return _allowed(form)
    named = [tool for tool in form.tools if tool.name == choice.name]
    if not named:
        _refuse(choice.name_place, f"there is no tool {told_name(choice.name)} in `tools`")
    return named[:1]


def _allowed(form: Form) -> Sequence[Offered]:
    """Raises RequestFailed for a tool that is allowed, and is not there."""
    names = form.choice.allowed
    if names is None:
        return form.tools
    known = {tool.name for tool in form.tools}
    for name, place in names.items():
        if name not in known:
            _refuse(place, f"there is no tool {told_name(name)} in `tools`")
    return [tool for tool in form.tools if tool.name in names]


def _refuse(place: str, reason: str) -> NoReturn:
    raise RequestFailed(invalid_request(f"{place}: {reason}", place))


def _tool(tool: Offered, markup: Markup, check: Check, lenient: bool) -> ToolSchema:
    """`lenient`: where a schema cannot be held to, anything goes, as without a grammar."""
    try:
        said = _schema_of(tool, check)
        call_rule(Rules(), said, markup)
    except SchemaRefused:
        if not lenient:
            raise
        return ToolSchema(tool.name, None, frozenset(), tool.name_place, tool.parameters_place)
    return said


def _schema_of(tool: Offered, check: Check) -> ToolSchema:
    parameters = _object_schema(tool.parameters, tool.parameters_place, check)
    texts = frozenset(name for name in _properties(parameters) if is_text(types_of(name, parameters)))
    return ToolSchema(tool.name, parameters, texts, tool.name_place, tool.parameters_place)


def _object_schema(parameters: Json, place: str, check: Check) -> Schema:
    """Left out: the tool takes none."""
    schema = {"properties": {}} if parameters is None else parameters
    if isinstance(schema, Mapping) and schema.get("type", "object") != "object":
        raise SchemaRefused(f"{place}.type", 'arguments are an object: it must be "object"')
    return usable({"type": "object", **schema} if isinstance(schema, dict) else schema, place, check)


def _properties(schema: Schema) -> Mapping[str, Json]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
