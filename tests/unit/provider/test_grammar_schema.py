"""What JSON schemas are taken for an answer's form, and what is said of those that are not."""

import json
from typing import Any

import pytest

from provider.errors import GrammarError, SchemaRefused
from provider.grammar.checking import check
from provider.grammar.json_schema import MAX_LOOKS, usable
from provider.grammar.limits import MAX_DEPTH, MAX_GRAMMAR_BYTES, MAX_PROPERTIES, MAX_SCHEMAS
from tests.fixtures.languages import admits, matcher_of


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def refusal(schema: Any) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as caught:
        usable(schema, "s", check)
    return caught.value


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ([], "s"),
        ("object", "s"),
        (False, "s"),
        ({"type": "strin"}, "s"),
        (closed(a={"type": "strin"}), "s.properties.a"),
        (closed(a=closed(b={"not": {}})), "s.properties.a.properties.b"),
        (closed(a={"type": "array", "items": 3}), "s.properties.a"),
        (closed(a={"anyOf": [{"type": "integer"}, 3]}), "s.properties.a.anyOf[1]"),
        (closed(a={"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "(a"}]}), "s.properties.a.anyOf[1]"),
        (closed(a={"type": "string", "pattern": "(?=a)"}), "s.properties.a.pattern"),
        ({"$defs": {"x": {"if": {}}}, **closed(a={"$ref": "#/$defs/x"})}, "s.properties.a"),
        ({"$ref": "#/$defs/none"}, "s"),
        ({"$ref": "https://example.com/schema"}, "s"),
        ({"$ref": "#"}, "s"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "s.$defs.a"),
        ({"type": "array", "uniqueItems": True}, "s"),
        ({"not": {}}, "s"),
        ({"not": {"type": "string"}}, "s"),
        ({"type": "object", "propertyNames": {"minLength": 2}}, "s.propertyNames"),
        ({"type": "object", "propertyNames": False}, "s.propertyNames"),
        (closed(a={"propertyNames": {"enum": ["a"]}, "properties": {}}), "s.properties.a.propertyNames"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "s"),
        ({"enum": []}, "s"),
        (closed(a={"type": "string", "minLength": 5, "maxLength": 2}), "s.properties.a"),
        ({"properties": [1]}, "s"),
        ({"type": "object", "required": "a"}, "s"),
        ({"type": "integer", "maximum": "x"}, "s"),
        ({"$ref": "#nowhere"}, "s"),
        ({"type": "object", "minProperties": 1}, "s.minProperties"),
        (closed(a={**closed(b={}), "required": [], "minProperties": 1}), "s.properties.a.minProperties"),
        ({**closed(a={}, b={}), "maxProperties": 1}, "s.maxProperties"),
        ({**closed(a={}), "maxProperties": 1, "additionalProperties": {}}, "s.maxProperties"),
        ({**closed(a={}), "minProperties": "1"}, "s.minProperties"),
        (
            {"allOf": [closed(a={"not": {}}), {"properties": {"b": {"$ref": "#/allOf/0/properties/a"}}}]},
            "s.allOf[0].properties.a",
        ),
        (
            {"allOf": [{"properties": {"a": {"type": "null"}}}, closed(b={"$ref": "#/allOf/0/properties/a"}, c=False)]},
            "s.allOf[1].properties.c",
        ),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused_by_its_place(schema: Any, place: str) -> None:
    refused = refusal(schema)
    assert refused.place == place
    assert str(refused) == f"{place}: {refused.reason}"
    assert "\n" not in refused.reason


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "pattern": "*"}, "its pattern cannot be read: repetition operator missing expression"),
        (
            {"type": "string", "pattern": "^a$", "minLength": 4},
            "nothing satisfies it: no text is all that is asked of it",
        ),
        ({"type": "string", "const": "a", "pattern": "^b"}, "nothing satisfies it: no text is all that is asked of it"),
        ({"type": "string", "enum": [1]}, "nothing satisfies it: incompatible types"),
        ({"anyOf": []}, "nothing satisfies it"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no number is within its bounds"),
        ({"$ref": "#/$defs/none"}, "the reference '#/$defs/none' leads nowhere"),
        ({"if": {}}, 'it uses what is not supported: ["if"]'),
        ({"const": "a\ud800"}, "it holds one half of a surrogate pair, which is no character"),
    ],
)
def test_a_refusal_says_why_in_words_of_its_own(schema: Any, reason: str) -> None:
    assert refusal(closed(a=schema) if "$ref" not in schema else schema).reason == reason


def test_values_of_a_schema_are_nested_no_deeper_than_they_are_read() -> None:
    value: Any = 1
    for depth in range(5000):
        value = [value]
        if depth == 60:
            usable({"const": value}, "s", check)
    assert "nested more than" in refusal({"const": value}).reason


def test_a_schema_is_bounded_before_anything_is_compiled() -> None:
    def nobody(grammar: str) -> None:
        raise AssertionError("compiled")

    nested: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        nested = {"items": nested}
    for schema in (
        nested,
        {"properties": {str(number): {} for number in range(MAX_PROPERTIES + 1)}},
        {"anyOf": [{"const": number} for number in range(MAX_SCHEMAS)]},
        {"enum": ["x" * MAX_GRAMMAR_BYTES]},
    ):
        with pytest.raises(SchemaRefused):
            usable(schema, "s", nobody)


def test_what_says_nothing_of_the_value_is_left_out() -> None:
    remarks = {"title": "t", "description": "d", "default": 1, "examples": [1], "x-guidance": {"lenient": True}}
    schema = closed(a={"type": "string", "format": "binary", **remarks}, format={"type": "string", "maxLength": 3})
    said = usable({**schema, **remarks}, "s", check)
    assert said["properties"] == {"a": {"type": "string"}, "format": {"type": "string", "maxLength": 3}}
    assert said["x-guidance"].get("lenient") is None
    assert usable({"type": "array", "uniqueItems": False}, "s", check)["type"] == "array"


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        ({"properties": {"a": {}}}, True),
        ({"properties": {}}, True),
        ({"properties": {}, "required": ["a"]}, False),
        ({"type": "object"}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, False),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, False),
        ({"$defs": {"x": {"properties": {}}}, "properties": {"a": {"$ref": "#/$defs/x", "required": []}}}, False),
        ({"$defs": {"x": {"properties": {}}}, "properties": {"a": {"$ref": "#/$defs/x"}}}, True),
    ],
)
def test_an_object_is_closed_where_one_place_describes_it(schema: dict[str, Any], is_closed: bool) -> None:
    assert (usable(schema, "s", check).get("additionalProperties") is False) == is_closed


def test_the_order_of_properties_is_kept() -> None:
    schema = closed(zeta={}, alpha={}, mu={})
    assert list(json.loads(json.dumps(usable(schema, "s", check)))["properties"]) == ["zeta", "alpha", "mu"]


def test_only_a_schema_of_some_size_is_searched_for_what_is_to_blame() -> None:
    looks = []

    def refuses(grammar: str) -> None:
        looks.append(grammar)
        raise GrammarError("no")

    with pytest.raises(SchemaRefused):
        usable(closed(**{f"p{number}": {"const": "x" * 1000} for number in range(100)}), "s", refuses)
    assert len(looks) == 1


def test_the_search_for_what_is_to_blame_is_bounded() -> None:
    looks = []

    def refuses_the_whole(grammar: str) -> None:
        looks.append(grammar)
        if "anyOf" in grammar:
            raise GrammarError("no")

    with pytest.raises(SchemaRefused) as caught:
        usable({"anyOf": [{"const": number} for number in range(1000)]}, "s", refuses_the_whole)
    assert caught.value.place == "s"
    assert len(looks) <= 1 + MAX_LOOKS


@pytest.mark.parametrize("count", [{"minProperties": 0}, {"minProperties": 2}, {"maxProperties": 2}])
def test_how_many_properties_there_are_may_follow_from_the_rest(count: dict[str, int]) -> None:
    said = usable({**closed(a={}, b={}), **count}, "s", check)
    assert not count.keys() & said.keys()


def named(schema: Any, reference: str, **root: Any) -> dict[str, Any]:
    return {**root, **closed(a={"$ref": reference}), "$defs": {"x": schema}}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (named({"$anchor": "n", "const": 1}, "#n"), "#/$defs/x"),
        (named({"$dynamicAnchor": "n", "const": 1}, "#n"), "#/$defs/x"),
        (named({"$id": "#n", "const": 1}, "#n"), "#/$defs/x"),
        (named({"$id": "b", "const": 1}, "b", **{"$id": "https://e.x/a"}), "#/$defs/x"),
        (named({"$id": "b", "const": 1}, "https://e.x/b#", **{"$id": "https://e.x/a"}), "#/$defs/x"),
        (named({"const": 1}, "https://e.x/a#/$defs/x", **{"$id": "https://e.x/a"}), "#/$defs/x"),
        (named({"const": 1}, "#/$defs/x", **{"$id": "https://e.x/a"}), "#/$defs/x"),
        (named({"$id": "urn:x", "$defs": {"y": {"const": 1}}}, "urn:x#/$defs/y"), "#/$defs/x/$defs/y"),
        (named({"anyOf": [{"$anchor": "n", "const": 1}]}, "#n"), "#/$defs/x/anyOf/0"),
        (named({"items": {"$anchor": "n", "const": 1}}, "#n"), "#/$defs/x/items"),
        (named({"properties": {"p/q": {"$anchor": "n", "const": 1}}}, "#n"), "#/$defs/x/properties/p~1q"),
    ],
)
def test_a_reference_by_name_is_followed(schema: Any, pointer: str) -> None:
    assert usable(schema, "s", check)["properties"]["a"]["$ref"] == pointer


def test_a_property_that_is_named_as_a_keyword_is_a_property() -> None:
    properties = {"$id": {"type": "string"}, "$ref": {"type": "string"}, "$anchor": {"type": "null"}}
    schema = {"$anchor": "x", **closed(**properties)}
    assert usable(schema, "s", check)["properties"] == properties


PAIRS = {"type": "object", "additionalProperties": {"type": "boolean"}}
EITHER = ["a", "b<|im_end|>"]


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({**PAIRS, "propertyNames": {"type": "string"}}, ['{"x": true}', "{}"], ['{"x": 1}']),
        ({**PAIRS, "propertyNames": True}, ['{"x": true}'], ['{"x": 1}']),
        ({"properties": {"x": {"const": 1}}, "propertyNames": {"title": "t"}}, ['{"x": 1}', "{}"], ['{"x": 2}']),
        (
            {**PAIRS, "propertyNames": {"type": "string", "enum": EITHER}, "required": ["a"]},
            ['{"a": true}', '{"a": true, "b<|im_end|>": false}'],
            ["{}", '{"c": true}', '{"a": 1}'],
        ),
        (
            {**PAIRS, "propertyNames": {"$ref": "#/$defs/E"}, "$defs": {"E": {"enum": EITHER}}},
            ["{}", '{"a": true}', '{"b<|im_end|>": true}'],
            ['{"c": true}', '{"a": 1}'],
        ),
        ({"type": "object", "propertyNames": {"const": "a"}}, ["{}", '{"a": [1]}'], ['{"b": 1}']),
        ({**PAIRS, "propertyNames": {"pattern": r"^\d$"}}, ["{}", '{"5": true}'], ['{"a": true}', '{"5": 1}']),
        ({**PAIRS, "propertyNames": {"format": "date"}}, ['{"2024-02-29": true}'], ['{"2023-02-29": true}']),
        ({"properties": {"a": {"const": 1}, "b": {"not": {}}}, "required": ["a"]}, ['{"a": 1}'], ['{"a": 1, "b": 1}']),
        (
            {"properties": {"b": {"not": {}, "title": "B"}}, "additionalProperties": {"const": 1}},
            ["{}", '{"a": 1}'],
            ['{"b": 1}', '{"a": 1, "b": 1}'],
        ),
        ({"type": "array", "items": {"not": True}}, ["[]"], ["[1]"]),
    ],
)
def test_what_a_keyword_says_is_held_to_where_others_say_it(
    schema: dict[str, Any], fitting: list[str], others: list[str]
) -> None:
    matcher = matcher_of(usable(schema, "s", check))
    assert [text for text in fitting if not admits(matcher, text)] == []
    assert [text for text in others if admits(matcher, text)] == []
