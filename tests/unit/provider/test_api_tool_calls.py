"""Tool arguments: typed as the tool's schema declares, and left as text where that does not fit."""

import json
from typing import Any

import pytest

from provider.api.tool_calls import Unparsed, parse_calls


def typed(value: str, schema: Any, root: dict[str, Any] | None = None) -> Any:
    tools = {"f": {"type": "object", "properties": {"p": schema}, **(root or {})}}
    calls = parse_calls(f"<function=f>\n<parameter=p>\n{value}\n</parameter>\n</function>", tools)
    assert not isinstance(calls, Unparsed)
    return json.loads(calls[0].arguments)["p"]


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("{'city': 'Oslo', 'open': True}", {"type": "object"}, {"city": "Oslo", "open": True}),
        ("['a', 'b']", {"type": "array"}, ["a", "b"]),
        ('{"a": [1, null]}', {"type": "object"}, {"a": [1, None]}),
        ("2025-06-15T10:30:00Z", {"type": "string"}, "2025-06-15T10:30:00Z"),
        ("3.10.5-beta", {"type": "string"}, "3.10.5-beta"),
        ("12", {"type": "string"}, "12"),
        ("null", {"type": "string"}, "null"),
        ("null", {"type": ["string", "null"]}, None),
        ("5", {"type": "integer"}, 5),
        ("5.5", {"type": "number"}, 5.5),
        ("True", {"type": "boolean"}, True),
        ("1", {"type": "boolean"}, "1"),
        ("true", {"type": "integer"}, "true"),
        ("NaN", {"type": "number"}, "NaN"),
        ("1e999", {"type": "number"}, "1e999"),
        ("not json", {"type": "object"}, "not json"),
        ("(1, 2)", {"type": "array"}, [1, 2]),
        ("'\\d'", {"type": "array"}, "'\\d'"),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
        ("7", {"anyOf": [{"type": "null"}, {"type": "integer"}]}, 7),
        ("12", {}, "12"),
        ("12", None, "12"),
        ("12", {"type": 5, "anyOf": 3}, "12"),
        ("", {"type": "string"}, ""),
        ("two\nlines\n", {"type": "string"}, "two\nlines\n"),
    ],
)
def test_a_value_is_what_its_schema_declares(value: str, schema: Any, expected: Any) -> None:
    assert typed(value, schema) == expected


def test_a_reference_is_followed() -> None:
    assert typed("3", {"$ref": "#/$defs/N"}, {"$defs": {"N": {"type": "integer"}}}) == 3


def test_a_schema_that_refers_to_itself_ends() -> None:
    defs = {"N": {"anyOf": [{"$ref": "#/$defs/N"}] * 50 + [{"type": "integer"}]}}
    assert typed("3", {"$ref": "#/$defs/N"}, {"$defs": defs}) == 3


def test_parameters_come_in_any_order() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}}
    body = "<function=f>\n<parameter=b>\nx\n</parameter>\n<parameter=a>\n1\n</parameter>\n</function>"
    calls = parse_calls(body, {"f": {"properties": properties}})
    assert not isinstance(calls, Unparsed)
    assert json.loads(calls[0].arguments) == {"a": 1, "b": "x"}


def test_a_lone_surrogate_stays_an_escape() -> None:
    calls = parse_calls('{"name": "f", "arguments": {"p": "\\ud800"}}', {})
    assert not isinstance(calls, Unparsed)
    assert calls[0].arguments.encode() == b'{"p": "\\ud800"}'
