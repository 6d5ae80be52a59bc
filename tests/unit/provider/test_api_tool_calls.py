"""Tool arguments: typed as the tool's schema declares, and left as text where that does not fit."""

import json
from typing import Any

import pytest

from provider.api.output import CallArguments
from tests.unit.provider.test_api_output import parse, summary


def arguments(body: str, tools: dict[str, Any]) -> Any:
    said = summary(parse([f"<tool_call>\n{body}\n</tool_call>"], tools=tools))
    [(name, arguments)] = said["calls"]
    assert (name, said["content"]) == ("f", "")
    return arguments


def typed(value: str, schema: Any, root: dict[str, Any] | None = None) -> Any:
    tools = {"f": {"type": "object", "properties": {"p": schema}, **(root or {})}}
    return arguments(f"<function=f>\n<parameter=p>\n{value}\n</parameter>\n</function>", tools)["p"]


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
    assert arguments(body, {"f": {"properties": properties}}) == {"a": 1, "b": "x"}


def test_of_a_parameter_that_comes_twice_the_first_counts() -> None:
    body = "<function=f>\n<parameter=b>\nx\n</parameter>\n<parameter=b>\ny\n</parameter>\n</function>"
    assert arguments(body, {"f": None}) == {"b": "x"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "f", "arguments": {}}', {}),
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"arguments": {"p": [1, {"q": null}]}, "name": "f"}', {"p": [1, {"q": None}]}),
        ('{"id": {"x": [1]}, "name": "f", "arguments": {"p": 1}, "more": "}"}', {"p": 1}),
        ('{"name": "f", "arguments": "{\\"p\\": \\"a b\\"}"}', {"p": "a b"}),
        ('{"name": "f", "arguments": {"p": "two\nlines\tand \\d"}}', {"p": "two\nlines\tand \\d"}),
        ('{"name": "f", "arguments": {"p": "he said "yes" to me"}}', {"p": 'he said "yes" to me'}),
        ('{"name": "f", "arguments": {"p": True, "q": None, "r": [1, 2,],}}', {"p": True, "q": None, "r": [1, 2]}),
        ('{"name": "f", "arguments": {"p": Oslo, "q": 1e999}}', {"p": "Oslo", "q": "1e999"}),
        ('{"name": "f", "arguments": {"p": 1}}}', {"p": 1}),
        ('{"name": "f", "arguments": {"p": 1', {"p": 1}),
        ('{"name": "f", "arguments": {"p": [1, {"q": "r', {"p": [1, {"q": "r\n"}]}),
        ('{"name": "f", "arguments": {"p": 1 2}}', {"p": 1}),
    ],
)
def test_what_models_get_wrong_in_json_is_mended(body: str, expected: Any) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    for size in (1, 2, 3, 5, len(text)):
        said = summary(parse([text[start : start + size] for start in range(0, len(text), size)]))
        if body.endswith("}"):
            assert said == {"reasoning": "", "content": "", "calls": [("f", expected)]}
        else:
            assert len(said["calls"]) == 1


def test_json_nested_too_deeply_is_closed() -> None:
    deep = "[" * 500
    said = summary(parse([f'<tool_call>\n{{"name": "f", "arguments": {{"p": {deep}']))
    assert json.dumps(said["calls"][0][1]).startswith('{"p": [[[')


def test_a_lone_surrogate_stays_an_escape() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"p": "\\ud800"}}</tool_call>'
    assert json.loads(json.dumps(arguments('{"name": "f", "arguments": {"p": "\\ud800"}}', {"f": None}))) == {
        "p": "\ud800"
    }
    assert CallArguments(0, '{"p": "\\ud800"}') in parse([text])
