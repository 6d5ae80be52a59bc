"""Numbers within their bounds, and those beyond what a double counts: held to digit by digit, or refused by their
place."""

from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.errors import SchemaRefused
from provider.grammar.answer import Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.json_schema import usable
from tests.fixtures.grammars import takes
from tests.fixtures.languages import texts_of
from tests.soak import examples

FAR = 2**53


def integer(**bounds: Any) -> dict[str, Any]:
    return {"type": "integer", **bounds}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": 1234567890123456789}, "s.const"),
        ({"enum": [1, -FAR]}, "s.enum[1]"),
        ({"enum": [{"a": [1, FAR]}]}, "s.enum[0]"),
        ({"const": 1e300}, "s.const"),
        ({"type": "object", "properties": {"id": {"const": FAR + 1}}, "required": ["id"]}, "s.properties.id.const"),
        (integer(minimum=FAR), "s.minimum"),
        (integer(minimum=2**60 + 1, maximum=2**60 + 200), "s.minimum"),
        (integer(maximum=-FAR - 1), "s.maximum"),
        (integer(exclusiveMaximum=-FAR), "s.exclusiveMaximum"),
        (integer(exclusiveMinimum=10**400), "s.exclusiveMinimum"),
        ({"type": "number", "minimum": 1e300}, "s.minimum"),
        (integer(multipleOf=FAR + 1), "s.multipleOf"),
        ({"const": 95.00000000000001}, "s.const"),
        ({"enum": [{"a": -10.006725060509055}]}, "s.enum[0]"),
        ({"type": "number", "multipleOf": 1e-30}, "s.multipleOf"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_its_place(schema: Any, place: str) -> None:
    with pytest.raises(SchemaRefused, match="digit by digit") as caught:
        usable(schema, "s", check)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"enum": [FAR - 1, 1 - FAR]}, [FAR - 1, 1 - FAR], [FAR, FAR - 2]),
        (
            integer(minimum=-(2**63), maximum=2**63 - 1),
            [5, 1234567890123456789, -1234567890123456789],
            [2**63, -(2**63) - 1, 10**20],
        ),
        (integer(minimum=0, maximum=2**64 - 1), [0, 2**62 + 1], [-1, 2**64, 10**25]),
        (integer(minimum=-FAR - 3), [-FAR - 2, 10**30], [-FAR - 4]),
        (integer(exclusiveMinimum=-FAR - 2, exclusiveMaximum=FAR + 2), [FAR, -FAR], [FAR + 2, -FAR - 2]),
        (integer(minimum=3, exclusiveMinimum=-(2**63)), [3], [2]),
        ({"type": "number", "minimum": -1e300, "maximum": 10**400}, [5, 0.5, -0.5], []),
    ],
)
def test_every_number_that_is_taken_is_within_its_bounds(schema: Any, taken: list[Any], refused: list[Any]) -> None:
    grammar = answer_grammar(Thinking.DONE, usable(schema, "s", check), None, "s", check)
    assert [one for one in taken if not takes(grammar, str(one))] == []
    assert [one for one in refused if takes(grammar, str(one))] == []


@pytest.mark.parametrize("number", [0.1, 3.141592653589793, 1e-7, -2.5, 0.30000000000000004, 123456789012345.0, 1e-22])
def test_the_digits_of_a_number_are_told_as_they_are(number: float) -> None:
    (told,) = texts_of(usable({"const": number}, "s", check), "-.0123456789", 40)
    assert float(told) == number


ALPHABET, MOST = "-.0159", 6
BOUNDS = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}
"""The sign of what lies within."""


def exact(number: float) -> Decimal:
    return Decimal(repr(number))


def fits(schema: dict[str, Any], text: str) -> bool:
    """By the arithmetic of decimals. Draft 4's bounds are those with a boolean."""
    value = Decimal(text)
    for key, sign in BOUNDS.items():
        bound = schema.get(key)
        if bound is None or isinstance(bound, bool):
            continue
        beyond = (value - exact(bound)) * sign
        exclusive = key.startswith("ex") or schema.get(f"exclusive{key.capitalize()}") is True
        if beyond < 0 or (exclusive and beyond == 0):
            return False
    multiple = schema.get("multipleOf")
    if multiple is not None and value % exact(multiple):
        return False
    return schema["type"] == "number" or value == int(value)


def simple_numbers() -> list[str]:
    heads = ["0", *(first + rest for first in "159" for rest in ("", *"0159"))]
    tails = ["", *(f".{''.join(tail)}" for tail in (*product("0159", repeat=1), *product("0159", repeat=2)))]
    return [sign + head + tail for sign in ("", "-") for head in heads for tail in tails]


SIMPLE = simple_numbers()
WHOLE = st.sampled_from([0, 0.0, -0.0, 1, -1, 1.0, -1.0, 5, -5, 10, -10, 15, 95, -95, 100, -100, 1000, -1000])
NEAR = st.sampled_from([0.5, -0.5, 0.05, -0.05, 0.001, -0.999, 0.55, 9.5, 99.5, 1e-7, -1e-7, 95.00000000000001])
BOUND = st.one_of(WHOLE, NEAR, st.decimals(-2, 2, places=3).map(float), st.floats(-11, 11))
SCHEMAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["number", "integer"])},
    optional={**dict.fromkeys(BOUNDS, BOUND), "multipleOf": st.sampled_from([1, 5, 0.5, 0.1, 0.01, 2.5])},
)


def bad_of(schema: dict[str, Any]) -> list[str]:
    """What is admitted of texts over few characters, and is none; and what should be, and is not."""
    try:
        held = usable(schema, "s", check)
    except SchemaRefused:
        return [] if "multipleOf" in schema else [text for text in SIMPLE if fits(schema, text)]
    admitted = texts_of(held, ALPHABET, MOST)
    values = {Decimal(text) for text in admitted}
    missing = [text for text in SIMPLE if fits(schema, text) and Decimal(text) not in values]
    return [text for text in admitted if not fits(schema, text)] + ([] if "multipleOf" in schema else missing)


@pytest.mark.parametrize(
    "schema",
    [
        {"exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
        {"exclusiveMaximum": 0, "minimum": -0.05},
        {"exclusiveMinimum": -0.0, "exclusiveMaximum": 0.001},
        {"exclusiveMinimum": 1, "maximum": 1.5823},
        {"exclusiveMaximum": -1.0, "minimum": -1.5},
        {"minimum": 0, "exclusiveMinimum": True, "maximum": 0.5},
        {"minimum": 5, "exclusiveMinimum": False, "maximum": 5.5},
        {"maximum": 0, "exclusiveMaximum": True, "minimum": -0.5},
        {"minimum": 0.1, "exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 0, "maximum": 0.5, "multipleOf": 0.1},
        {"minimum": 95.00000000000001},
        {"minimum": 1.2e-71, "maximum": 1},
        {"minimum": -1, "exclusiveMaximum": 1.2e-71},
        {"exclusiveMinimum": -1e-300, "maximum": 1e-300},
        {"exclusiveMaximum": -100},
        {"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}], "exclusiveMinimum": 0, "maximum": 0.5},
    ],
)
def test_a_number_that_its_bounds_leave_out_is_never_admitted(schema: dict[str, Any]) -> None:
    assert bad_of({"type": "number", **schema}) == []


@settings(max_examples=examples(3000, share=60))
@given(schema=SCHEMAS)
def test_what_is_admitted_is_what_decimals_say(schema: dict[str, Any]) -> None:
    assert bad_of(schema) == []
