"""Numbers beyond what a double counts: held to digit by digit, or refused by their place."""

from typing import Any

import pytest

from provider.errors import SchemaRefused
from provider.grammar.answer import Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.json_schema import usable
from tests.fixtures.grammars import takes

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
