"""Calls of tools as rules, in the markup a model was taught. The opening tag is the caller's.

What these rules allow is what provider.api.tool_calls reads.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from llguidance import regex_to_lark

from provider.errors import SchemaRefused
from provider.grammar.json_schema import ANY_OBJECT, STYLE, Schema
from provider.grammar.local_names import followed
from provider.grammar.references import standing_alone
from provider.grammar.rules import Rules, literal

Json = Any
"""A decoded JSON value."""

END, CALL_END = "\n</parameter>", "\n</tool_call>"
MAX_BRANCHES = 8
"""How deep alternatives of texts may lie within one another."""
_ATOMS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", re.DOTALL)
"""Escaped characters and classes of a pattern, in which nothing is an anchor."""


class Markup(Enum):
    XML = auto()
    """Qwen's: `<function=NAME>`, and each value raw or as JSON."""
    JSON = auto()
    """Hermes': `{"name": NAME, "arguments": {...}}`."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """`parameters`: as provider.grammar.json_schema gives them, None for anything; `texts`: those that are read as text
    rather than as JSON. The places are those in the request."""

    name: str
    parameters: Schema | None
    texts: frozenset[str]
    name_place: str
    parameters_place: str


def call_rule(rules: Rules, tool: ToolSchema, markup: Markup) -> str:
    """The name of a rule for what stands behind `<tool_call>`. Raises SchemaRefused."""
    name = rules.fresh("call")
    match markup:
        case Markup.JSON:
            head = literal('\n{"name": ' + literal(tool.name) + ', "arguments": ')
            tail = literal("}" + CALL_END)
            rules.add(name, f"{head} {rules.schema(tool.parameters or {**ANY_OBJECT, 'x-guidance': STYLE})} {tail}")
        case Markup.XML:
            _check_name(tool.name, tool.name_place)
            rules.add(name, _xml_call(rules, tool))
    return name


def _xml_call(rules: Rules, tool: ToolSchema) -> str:
    head = literal(f"\n<function={tool.name}>\n")
    if tool.parameters is None:
        free = rules.fresh("free")
        rules.add(f"{free}[lazy]", r"/(.|\n)*?<\/function>/")
        return f"{head} {free} {literal(CALL_END)}"
    place, parameters = tool.parameters_place, tool.parameters
    for key in ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "minProperties", "maxProperties"):
        if key in parameters:
            why = "this model writes parameters one by one: they have to be named in `properties` alone"
            raise SchemaRefused(f"{place}.{key}", why)
    properties: dict[str, Json] = parameters.get("properties") or {}
    required: list[Json] = parameters.get("required") or []
    if missing := [name for name in required if name not in properties]:
        raise SchemaRefused(f"{place}.required", f"{missing[0]!r} is not among `properties`")
    said = [head]
    for name, schema in properties.items():
        _check_name(name, f"{place}.properties")
        where = f"{place}.properties.{name}"
        if schema is False and name not in required:
            continue
        one = _parameter(rules, parameters, name, schema, where, as_text=name in tool.texts)
        said.append(one if name in required else f"{one}?")
    return " ".join([*said, literal(f"</function>{CALL_END}")])


def _check_name(name: str, place: str) -> None:
    if not name or any(char in name for char in ">\n") or name != name.strip():
        raise SchemaRefused(place, f"{name!r} cannot be written in this model's tool calls")


def _parameter(rules: Rules, root: Schema, name: str, schema: Json, place: str, as_text: bool) -> str:
    rule = rules.fresh("parameter")
    head, line = literal(f"<parameter={name}>\n"), literal("\n")
    if as_text:
        values = " | ".join(_texts(rules, schema, root, place, MAX_BRANCHES))
        rules.add(rule, f"{head} ({values}) {line}")
    else:
        value = rules.schema({**standing_alone(_object(schema), root), "x-guidance": STYLE})
        rules.add(rule, f"{head} {value} {literal(END)} {line}")
    return rule


def _texts(rules: Rules, schema: Json, root: Schema, place: str, depth: int) -> list[str]:
    """How a value that is read as text may go on to its end tag; of several kinds of value, those that are text."""
    found = _resolved(schema, root)
    if depth == 0 or "$ref" in found or not all(_is_pattern(one) for one in _list(found.get("allOf"))):
        raise SchemaRefused(place, "a text is described by itself here, not by others that have to hold as well")
    branches = [*_list(found.get("anyOf")), *_list(found.get("oneOf"))]
    if branches:
        return [rule for one in branches for rule in _branch(rules, one, root, place, depth - 1)]
    choices = _choices(found)
    if choices is not None:
        where = f"{place}.{'const' if 'const' in found else 'enum'}"
        return [literal(_as_text(one, where) + END) for one in choices]
    null = [literal("null" + END)] if "null" in _list(found.get("type")) else []
    return [_raw(rules, found, place), *null]


def _branch(rules: Rules, schema: Json, root: Schema, place: str, depth: int) -> list[str]:
    kinds = _list(_resolved(schema, root).get("type"))
    if kinds and "string" not in kinds:
        return [literal("null" + END)] if "null" in kinds else []
    return _texts(rules, schema, root, place, depth)


def _resolved(schema: Json, root: Schema) -> Schema:
    """What a reference within the tool's own schema leads to."""
    found = _object(schema)
    for _ in range(MAX_BRANCHES):
        reference = found.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        value = _object(followed(root, reference))
        found = {**value, **{key: one for key, one in found.items() if key != "$ref"}}
    return found


def _is_pattern(schema: Json) -> bool:
    """Whether that is all it says, as of a text that has a pattern and a format."""
    return isinstance(schema, dict) and schema.keys() == {"pattern"}


def _object(schema: Json) -> Schema:
    return schema if isinstance(schema, dict) else {}


def _list(value: Json) -> list[Json]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _choices(schema: Schema) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if isinstance(choices, list) and choices else None


def _as_text(value: Json, place: str) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        why = "is no text, and the parameter may be text: give it a `type`, without `string`"
        raise SchemaRefused(place, f"{value!r} {why}")
    if "</parameter>" in value or "</function>" in value:
        raise SchemaRefused(place, f"{value!r} cannot be written as text: it holds this model's own markup")
    return value


def _raw(rules: Rules, schema: Schema, place: str) -> str:
    """Raw text up to its end tag, which is the first that it holds."""
    text, value = rules.fresh("TEXT"), rules.fresh("value")
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    kinds = [rf"/(.|\n){{{least},{most}}}/"]
    for one in (schema, *_list(schema.get("allOf"))):
        if "pattern" in one:
            kinds.append(_pattern(one["pattern"], f"{place}.pattern"))
    rules.add(text, " & ".join([*kinds, r"~/(.|\n)*<\/(parameter|function)>(.|\n)*/"]))
    rules.add(f"{value}[lazy]", rf"{text} /\n<\/parameter>/")
    return value


def _pattern(pattern: Json, place: str) -> str:
    """JSON Schema's patterns are looked for anywhere in a text; anchors at their ends say otherwise."""
    if not isinstance(pattern, str):
        raise SchemaRefused(place, "a pattern must be a string")
    bare = _ATOMS.sub("a", pattern)
    begins, ends = bare.startswith("^"), bare.endswith("$")
    if "^" in bare[1:] or "$" in bare[:-1] or ((begins or ends) and _has_alternatives(bare)):
        raise SchemaRefused(place, "anchors are supported at the ends of a pattern without alternatives only")
    middle = pattern[begins : len(pattern) - ends]
    rest = r"(.|\n)*"
    whole = f"{'' if begins else rest}({middle}){'' if ends else rest}"
    return f"/{regex_to_lark(whole, 'dw')}/"


def _has_alternatives(bare: str) -> bool:
    """Outside of any group."""
    depth = 0
    for char in bare:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False
