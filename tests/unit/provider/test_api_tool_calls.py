"""Tool arguments: typed as the tool's schema declares, and left as text where that does not fit."""

import json
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.conversation import arguments_of
from provider.api.output import CallArguments
from tests.soak import examples
from tests.unit.provider.test_api_output import in_runs, parse, summary

MOST = sys.float_info.max


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
        ("1e999", {"type": "number"}, MOST),
        ('{"a": [-40e100999]}', {"type": "object"}, {"a": [-MOST]}),
        ("1", {"const": 1}, 1),
        ("1", {"enum": ["1"]}, "1"),
        ("1", {"enum": ["a", 1]}, "1"),
        ("true", {"enum": [True, None]}, True),
        ("1.5", {"const": 1.5}, 1.5),
        ("[1]", {"const": [1]}, [1]),
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


def test_a_reference_to_the_whole_is_followed() -> None:
    assert typed('{"p": null}', {"$ref": "#"}) == {"p": None}


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
        ('{"name": "f", "arguments": {"p": Oslo, "q": 1e999}}', {"p": "Oslo", "q": MOST}),
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


def deepest(value: Any) -> Any:
    while isinstance(value, list | dict) and value:
        [value] = value.values() if isinstance(value, dict) else value
    return value


@pytest.mark.parametrize("inner", ['"] }{", 1, {"b\\"[": null}', "", "1, 2, [3], {}"])
def test_what_is_nested_too_deeply_is_told_as_the_text_it_is(inner: str) -> None:
    deep = "[" * 200 + inner + "]" * 200
    body = f'{{"name": "f", "arguments": {{"p": {deep}, "q": 1}}}}'
    for size in (1, 3, len(body)):
        said = summary(parse(in_runs(f"<tool_call>\n{body}\n</tool_call>", size)))
        [(name, told)] = said["calls"]
        assert (name, said["content"], told["q"]) == ("f", "", 1)
        kept = deepest(told["p"])
        assert isinstance(kept, str)
        assert "[" * 127 + kept + "]" * 127 == deep
    assert typed(deep, {"type": "array"}) == deep


def test_json_nested_too_deeply_is_closed() -> None:
    deep = "[" * 500
    said = summary(parse([f'<tool_call>\n{{"name": "f", "arguments": {{"p": {deep}']))
    assert deepest(said["calls"][0][1]) == "[" * (500 - 127)
    said = summary(parse([f'<tool_call>\n{{"name": "f", "arguments": {{"p": {deep}</tool_call> Done.']))
    assert (deepest(said["calls"][0][1]), said["content"]) == ("[" * (500 - 127), " Done.")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("9" * 4096, "9" * 4096),
        ("-0.1000", "-0.1000"),
        ("1E5", "1E5"),
        ("0.12345678901234567890123", "0.12345678901234567890123"),
        ("9" * 4097, '"' + "9" * 4097 + '"'),
        ("1" * 9000, '"' + "1" * 9000 + '"'),
        ("1e999", str(MOST)),
        ("-40e100999", str(-MOST)),
        ("1e-999", "1e-999"),
        ("NaN", '"NaN"'),
        ("-Infinity", '"-Infinity"'),
        ("007", '"007"'),
    ],
)
def test_numbers_are_told_digit_for_digit_and_what_is_none_as_text(written: str, told: str) -> None:
    """In either form; what is told is JSON that our own reader takes."""
    hermes = f'<tool_call>\n{{"name": "f", "arguments": {{"p": {written}}}}}\n</tool_call>'
    xml = f"<tool_call>\n<function=f>\n<parameter=p>\n{written}\n</parameter>\n</function>\n</tool_call>"
    for text, size in ((hermes, 1), (hermes, 7), (hermes, 10**5), (xml, 7)):
        pieces = parse(in_runs(text, size), tools={"f": {"properties": {"p": {"type": "number"}}}})
        said = "".join(piece.json for piece in pieces if isinstance(piece, CallArguments))
        assert said == f'{{"p": {told}}}'
        arguments_of(said, "here")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"{\\"p\\": NaN}"', {"p": "NaN"}),
        ("\"{'p': 'x'}\"", {"p": "x"}),
        ('"{\\"p\\": 0.10}"', {"p": 0.1}),
        (f'"{{\\"p\\": {"9" * 5000}}}"', {"p": "9" * 5000}),
        ('""', {}),
        ('"null"', {}),
        ('"{\\"p\\": \\"a"', {"p": "a"}),
    ],
)
def test_arguments_written_as_a_string_are_read_like_others(written: str, expected: Any) -> None:
    assert arguments(f'{{"name": "f", "arguments": {written}}}', {"f": None}) == expected


UNITS = st.sampled_from(
    ["\\ud83d", "\\uDE00", "\\udfff", "\\uD800", "\\u0041", "\\n", "\\\\", "a", "é😀", "u", "d83d", " "]
)


@settings(max_examples=examples(2500))
@given(st.lists(UNITS, max_size=8).map("".join), st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_half_a_surrogate_pair_is_never_told(text: str, cuts: list[int], early: bool) -> None:
    """In a value, in a key, in a name, in the string that holds the arguments; at any split."""
    whole = json.loads(f'"{text}"').encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    object_ = f'{{"{text}": ["{text}"]}}'
    members = [f'"name": "n{text}"', f'"arguments": {json.dumps(object_) if early else object_}']
    body = f"<tool_call>{{{', '.join(members[::-1] if early else members)}}}</tool_call>"
    places = sorted(cut % (len(body) + 1) for cut in cuts)
    for pieces in ([body[a:b] for a, b in pairwise([0, *places, len(body)])], in_runs(body, 1)):
        said = parse(pieces)
        for piece in said:
            piece.json.encode() if isinstance(piece, CallArguments) else piece.name.encode()  # type: ignore[union-attr]
        assert summary(said)["calls"] == [("n" + whole, {whole: [whole]})]


def test_half_a_surrogate_pair_in_xml_is_never_told() -> None:
    assert typed('["\\ud800", "\\ud83d\\ude00"]', {"type": "array"}) == ["\ufffd", "\U0001f600"]
    assert typed("['\\ud800']", {"type": "array"}) == ["\ufffd"]
