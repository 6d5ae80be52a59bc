"""Numbers of a schema that are held to digit by digit. Pure.

llguidance computes with doubles, and with integers of 64 bits: a number beyond 2**53 - 1 it would hold an answer to is
another one. Where a bound lies further out than that, a nearer one is put in its place, which every answer then is
within too; where nothing nearer would do, the schema is refused by the place of the number.
"""

import math
from typing import Any

from provider.errors import SchemaRefused

Json = Any
"""A decoded JSON value."""
Schema = dict[str, Json]

EXACT = 2**53 - 1
LARGEST = 2**63 - 1024
"""The largest double within 64 bits."""
_LEAST, _MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_WHY = "is beyond 2**53 - 1, where numbers cannot be held to digit by digit: a string can"


def with_exact_numbers(schema: Schema, place: str) -> Schema:
    """One schema without those within it. Raises SchemaRefused with the place of a number that cannot be exact."""
    _check_values(schema, place)
    multiple = schema.get("multipleOf")
    if _is_far(multiple):
        raise SchemaRefused(f"{place}.multipleOf", f"{_told(multiple)} {_WHY}")
    return _bounded(_bounded(schema, place, _LEAST, -1), place, _MOST, 1)


def _check_values(schema: Schema, place: str) -> None:
    named = [(schema["const"], f"{place}.const")] if "const" in schema else []
    choices = schema.get("enum")
    if isinstance(choices, list):
        named += [(one, f"{place}.enum[{number}]") for number, one in enumerate(choices)]
    for value, where in named:
        todo = [value]
        while todo:
            one = todo.pop()
            if _is_far(one):
                raise SchemaRefused(where, f"{_told(one)} {_WHY}")
            todo += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _bounded(schema: Schema, place: str, keys: tuple[str, str], outwards: int) -> Schema:
    """`keys`: of the bound, and of the one that is no value itself; `outwards`: the sign of what lies beyond it."""
    far = {key: schema[key] for key in keys if _is_far(schema.get(key))}
    if not far:
        return schema
    for key, value in far.items():
        if (value > 0) != (outwards > 0):
            raise SchemaRefused(f"{place}.{key}", f"{_told(value)} {_WHY}")
    found = {key: value for key, value in schema.items() if key not in far}
    plain, exclusive = keys
    nearest = min(_inwards(abs(value), exclusive=key == exclusive) for key, value in far.items())
    nearer = [found[key] for key in keys if _is_number(found.get(key))]
    return found if nearer else {**found, plain: outwards * nearest}


def _inwards(bound: float, exclusive: bool) -> int:
    """The double that is nearest to a positive bound, and within it."""
    if bound > LARGEST:
        return LARGEST
    nearest = float(bound)
    if nearest > bound or (exclusive and nearest == bound):
        nearest = math.nextafter(nearest, 0)
    return int(nearest)


def _is_far(value: Json) -> bool:
    return _is_number(value) and abs(value) > EXACT


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _told(value: Json) -> str:
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
