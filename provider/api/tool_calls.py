"""The inside of `<tool_call>`: Qwen's XML or Hermes' JSON, with arguments typed by the tool's schema."""

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn

Json = Any
"""A decoded JSON value."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """`arguments` is JSON text, as the OpenAI API wants it."""

    name: str
    arguments: str


class Unparsed(Enum):
    UNFINISHED = auto()
    """It may yet become a call: what looked like its end was inside a value."""
    MALFORMED = auto()


_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_FUNCTION_END = re.compile(r"\s*</function>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
# An end tag inside a value is told from the real one by what follows.
_PARAMETER_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>\s*(?:<function=|\Z)))")

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def parse_calls(body: str, tools: Mapping[str, Json]) -> list[ParsedCall] | Unparsed:
    """`body` is what stands between `<tool_call>` and an end tag; `tools` maps a name to its parameters' schema.

    A name that is not declared is still a call: its caller can say so to the model.
    """
    text = body.strip()
    if text.startswith("{"):
        return _parse_json(text)
    return _parse_xml(text, tools)


def _parse_json(text: str) -> list[ParsedCall] | Unparsed:
    try:
        call = _loads(text)
    except json.JSONDecodeError as error:
        unfinished = error.msg.startswith("Unterminated string")
        return Unparsed.UNFINISHED if unfinished else Unparsed.MALFORMED
    except (ValueError, RecursionError):
        return Unparsed.MALFORMED
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
        return Unparsed.MALFORMED
    return [ParsedCall(call["name"], _json_text(arguments))]


def _parse_xml(text: str, tools: Mapping[str, Json]) -> list[ParsedCall] | Unparsed:
    calls: list[ParsedCall] = []
    at = 0
    while at < len(text):
        opened = _FUNCTION.match(text, at)
        if opened is None:
            return Unparsed.MALFORMED
        name = opened[1].strip()
        read = _parse_parameters(text, opened.end())
        if isinstance(read, Unparsed):
            return read
        values, at = read
        schema = tools.get(name) or {}
        typed = {key: _typed(value, _property(schema, key), schema) for key, value in values.items()}
        calls.append(ParsedCall(name, _json_text(typed)))
    return calls or Unparsed.MALFORMED


def _parse_parameters(text: str, at: int) -> tuple[dict[str, str], int] | Unparsed:
    """The raw values of one function, and where it ends."""
    values: dict[str, str] = {}
    while opened := _PARAMETER.match(text, at):
        closed = _PARAMETER_END.search(text, opened.end())
        if closed is None:
            return Unparsed.UNFINISHED
        values[opened[1].strip()] = text[opened.end() : closed.start()]
        at = closed.end()
    ended = _FUNCTION_END.match(text, at)
    return (values, ended.end()) if ended else Unparsed.MALFORMED


def _typed(text: str, schema: Json, root: Json) -> Json:
    """The value its schema wants, or the text as it is where no reading of it fits. A string stays a string."""
    types = _types(schema, root)
    if not types or ("string" in types and text.strip() not in ("null", "None")):
        return text
    value = _parsed(text.strip())
    return value if any(_fits(value, name) for name in types) else text


def _fits(value: Json, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float) and name == "integer":
        return value.is_integer()
    return isinstance(value, _JSON_TYPES.get(name, ()))


def _parsed(text: str) -> Json:
    """JSON, else a Python literal, which models write too; else the text itself."""
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return _loads(json.dumps(_literal(text)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _loads(text: str) -> Json:
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _literal(text: str) -> Json:
    with warnings.catch_warnings():
        # The compiler warns of odd escapes, quoting what a model wrote.
        warnings.simplefilter("ignore")
        return ast.literal_eval(text)


def _json_text(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate, written as an escape, has no other form.
        return json.dumps(value)
    return text


def _property(schema: Json, name: str) -> Json:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(name) if isinstance(properties, dict) else None


def _types(schema: Json, root: Json) -> set[str]:
    """Every type `schema` allows, as far as it says so. Each part is visited once, however it recurs."""
    types: set[str] = set()
    seen: set[int] = set()
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        types.update(name for name in _list(part.get("type")) if isinstance(name, str))
        todo += [branch for key in ("anyOf", "oneOf", "allOf") for branch in _list(part.get(key))]
        todo.append(_referenced(part.get("$ref"), root))
    return types


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _referenced(reference: Json, root: Json) -> Json:
    """`#/$defs/Name` within the schema of the same tool."""
    if not isinstance(reference, str):
        return None
    value = root
    for step in reference.removeprefix("#/").split("/"):
        value = value.get(step) if isinstance(value, dict) else None
    return value
