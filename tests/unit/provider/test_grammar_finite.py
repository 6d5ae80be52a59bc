"""Schemas that only an endless value would satisfy are refused by their place, and no other."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.errors import SchemaRefused
from provider.grammar.answer import Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.finite import endless, without_endless_parts
from provider.grammar.json_schema import usable
from tests.fixtures.grammars import begins, takes
from tests.soak import examples

SELF = {"$ref": "#"}


def needs(name: str = "a", of: Any = SELF, **more: Any) -> dict[str, Any]:
    return {"properties": {name: of}, "required": [name], **more}


def defs(root: Any, **named: Any) -> dict[str, Any]:
    return {**root, "$defs": named}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


EMPTY = [
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "number", "exclusiveMinimum": 5, "maximum": 3},
    {"type": "string", "minLength": 5, "maxLength": 3},
    {"type": "array", "minItems": 3, "maxItems": 2},
]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (needs(type="object"), "s.properties.a"),
        ({"type": "array", "items": SELF, "minItems": 1}, "s.items"),
        ({"type": "array", "prefixItems": [{}, SELF], "minItems": 2}, "s.prefixItems[1]"),
        ({"type": "array", "prefixItems": [{}], "items": SELF, "minItems": 2}, "s.items"),
        (needs("b", {"type": "array", "items": SELF, "minItems": 3}, type="object"), "s.properties.b.items"),
        ({"anyOf": [needs(type="object"), {"type": "array", "items": SELF, "minItems": 1}]}, "s.anyOf[0].properties.a"),
        ({"allOf": [{"type": "object"}, needs()]}, "s.allOf[1].properties.a"),
        ({"type": "object", "allOf": [{"required": ["a"]}, {"properties": {"a": SELF}}]}, "s.allOf[1].properties.a"),
        ({**needs(type="object"), "anyOf": [{"required": ["b"]}, {"required": ["c"]}]}, "s.properties.a"),
        ({"type": "object", "required": ["z"], "additionalProperties": SELF}, "s.additionalProperties"),
        ({"type": "object", "minProperties": 1, "additionalProperties": SELF}, "s.additionalProperties"),
        ({"type": "object", "minProperties": 2, **needs("z", {}), "additionalProperties": SELF},
         "s.additionalProperties"),
        (defs(ref("x"), x=needs("y", ref("y"), type="object"), y=needs("x", ref("x"), type="object")), None),
        (needs("b", needs("c", SELF, type="object"), type="object"), "s.properties.b.properties.c"),
        (defs(needs("l", ref("L"), type="object"), L={"type": "array", "items": ref("L"), "minItems": 1}), None),
        (needs("a", {"anyOf": [SELF, {"anyOf": [SELF]}]}, type="object"), None),
        (needs("a", {"allOf": [{"type": ["object", "null"]}, {"type": ["object", "string"]}, SELF]}, type="object"),
         None),
        ({"type": "object", "required": ["z"], "patternProperties": {"^z$": SELF}}, "s.patternProperties.^z$"),
        ({"type": "object", "required": ["z"], "patternProperties": {"a": {}}, "additionalProperties": SELF},
         "s.additionalProperties"),
        ({"anyOf": [needs(type="object"), *EMPTY]}, "s.anyOf[0].properties.a"),
        ({"allOf": [{"minLength": 3}, {"maxLength": 2}], "anyOf": [needs(type="object"), {"type": "string"}]}, None),
    ],
)  # fmt: skip
def test_what_only_an_endless_value_satisfies_is_refused_by_its_place(schema: Any, place: str | None) -> None:
    found = endless(schema, "s")
    assert found is not None
    assert place is None or found == place


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"properties": {"a": SELF}},
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [{}, SELF], "minItems": 1},
        needs("a", {"anyOf": [{"type": "null"}, SELF]}),
        needs("a", {"type": ["object", "null"], **needs("b", SELF)}),
        {"type": ["object", "string"], **needs()},
        needs(),  # of a value that is no object, nothing is asked
        {"anyOf": [needs(type="object"), {"const": 1}]},
        defs(ref("T"), T={"type": "object", "properties": {"next": {"anyOf": [ref("T"), {"type": "null"}]}},
                          "required": ["next"]}),
        {"type": "object", "required": ["z"], "patternProperties": {"^z": {}}, "additionalProperties": SELF},
        {"type": "object", "minProperties": 1, **needs("z", {}), "additionalProperties": SELF},
        {"type": "object", "minProperties": 1},
        needs("a", {"$ref": "#/nowhere"}, type="object"),
        needs("a", {"$ref": "other.json"}, type="object"),
        needs("a", {"type": "array", "items": SELF, "minItems": 0}, type="object"),
        {"type": "object", "required": ["z"], "patternProperties": {"z{1}": {}}, "additionalProperties": SELF},
        {"type": "object", "required": ["z"], "patternProperties": {"^y": SELF, "y$": SELF, "y": SELF}},
        needs("a", {"$ref": "#name"}, type="object"),
        {"anyOf": [needs(type="object"), {"type": "integer", "minimum": 3, "maximum": 3}]},
        {"type": "object", "required": "a", "properties": [1], "prefixItems": 3, "minItems": True},
    ],
)  # fmt: skip
def test_what_a_finite_value_may_satisfy_is_not(schema: Any) -> None:
    assert endless(schema, "s") is None


def test_it_is_a_refusal_of_a_form_that_names_the_place() -> None:
    endless_list = {"type": "array", "items": SELF, "minItems": 1}
    for schema, place in ((needs(type="object"), "s.properties.a"), (endless_list, "s.items")):
        with pytest.raises(SchemaRefused, match="no finite value") as caught:
            usable(schema, "s", check)
        assert caught.value.place == place


def test_a_list_that_ends_somewhere_is_taken() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, ref("N")]}}, "required": ["next"]}
    assert usable(defs(ref("N"), N=node), "s", check)


NODE = {"type": "object", **needs("n", ref("N"))}


@pytest.mark.parametrize(
    ("schema", "taken", "begun"),
    [
        (defs({"properties": {"a": {"const": 1}, "d": ref("N")}, "required": ["a"]}, N=NODE), '{"a": 1}', '{"a": 1,'),
        (defs(needs("a", {"anyOf": [ref("N"), {"const": 1}]}), N=NODE), '{"a": 1}', '{"a": {'),
        (defs({"type": "array", "items": ref("N")}, N=NODE), "[]", "[{"),
        (defs({"type": "object", "additionalProperties": ref("N")}, N=NODE), "{}", '{"'),
    ],
)
def test_what_could_never_come_to_its_end_cannot_be_begun(schema: Any, taken: str, begun: str) -> None:
    grammar = answer_grammar(Thinking.DONE, usable(schema, "s", check), None, "s", check)
    assert takes(grammar, taken)
    assert not begins(grammar, begun)


@pytest.mark.parametrize("count", [30, 3000])
def test_the_look_is_bounded(count: int) -> None:
    """Doubling alternatives; a chain in which each is found out one round after the next."""
    doubling = {str(n): {"anyOf": [ref(str(n + 1)), ref(str(n + 1))]} for n in range(count)}
    assert endless(defs(ref("0"), **doubling, **{str(count): {"type": "null"}}), "s") is None
    chain = {str(n): needs("n", ref(str(n + 1)), type="object") for n in range(count)}
    assert endless(defs(ref("0"), **chain, **{str(count): {"type": "null"}}), "s") is None


NAMES = st.sampled_from(["a", "b"])
LEAVES = st.sampled_from([True, {}, {"type": "null"}, {"type": "object"}, SELF, ref("A"), ref("B"), {"const": 1}])


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, inner, max_size=2)
    objects = st.fixed_dictionaries(
        {"properties": properties},
        optional={
            "type": st.just("object"),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "minProperties": st.integers(0, 2),
        },
    )
    arrays = st.fixed_dictionaries(
        {"minItems": st.integers(0, 2)},
        optional={"type": st.just("array"), "items": inner, "prefixItems": st.lists(inner, max_size=2)},
    )
    several = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("anyOf", "allOf"), st.lists(inner, min_size=1, max_size=2))
    )
    return objects | arrays | several


SCHEMAS = st.recursive(LEAVES, grown, max_leaves=6)
SMALL: list[Any] = [None, 1, "x", {}, []]
SMALL += [{"a": one} for one in SMALL] + [[one] for one in (None, 1, {}, [])]
SMALL += [{"a": {}, "b": 1}, {"a": None, "b": None}, {"a": {"a": None}}, {"b": {}}, {"b": 1}, {"b": {"a": {}}}]
SMALL += [[[], []], [1, 1], [{"a": 1}], {"a": [1]}, [None, None]]


@settings(max_examples=examples(4000), deadline=None)
@given(SCHEMAS, SCHEMAS, SCHEMAS)
def test_whatever_is_refused_or_left_out_no_small_value_satisfies(root: Any, a: Any, b: Any) -> None:
    schema = {**(root if isinstance(root, dict) else {}), "$defs": {"A": a, "B": b}}
    apart = json.loads(json.dumps(schema))
    left = False if endless(apart, "s") is not None else without_endless_parts(apart)
    if left == schema:
        return
    validator, of_left = (jsonschema.Draft202012Validator(one) for one in (schema, left))
    for value in SMALL:
        try:
            satisfied = validator.is_valid(value)
        except RecursionError:
            return  # a reference that is nothing but itself
        assert satisfied == (left is not False and of_left.is_valid(value)), value
