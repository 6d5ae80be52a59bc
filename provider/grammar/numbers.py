"""Numbers of a schema that are held to digit by digit. Pure.

llguidance computes with doubles, and with integers of 64 bits: a number beyond 2**53 - 1 it would hold an answer to is
another one, and so are some of 16 and 17 digits, which it reads one double off. Where a bound is such a number, one
further inwards is put in its place, which every answer then is within too; where nothing else would do, the schema is
refused by the place of the number.
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
MOST_DECIMALS = 40
"""Of a bound: llguidance writes it down as a pattern, one level deeper for each. More has only what is next to zero."""
LEAST_STEP = 1e-22
"""From zero to what is taken for the next number."""
_LEAST, _MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_WHY = "is beyond 2**53 - 1, where numbers cannot be held to digit by digit: a string can"
_WHY_LONG = "has more digits than it can be held to digit by digit: 15 always can be, of 22 decimals at most"


def with_exact_numbers(said: Schema, place: str) -> Schema:
    """One schema without those within it. Raises SchemaRefused with the place of a number that cannot be exact."""
    schema = _as_numbers(_as_numbers(said, _LEAST), _MOST)
    _check_values(schema, place)
    multiple = schema.get("multipleOf")
    if why := _why_not(multiple):
        raise SchemaRefused(f"{place}.multipleOf", f"{_told(multiple)} {why}")
    near = _bounded(_bounded(schema, place, _LEAST, -1), place, _MOST, 1)
    whole = schema.get("type") == "integer"
    return _well_read(_well_read(near, _LEAST, 1, whole), _MOST, -1, whole)


def _as_numbers(schema: Schema, keys: tuple[str, str]) -> Schema:
    """Draft 4 has it that `exclusiveMinimum` is true or false, and says so of `minimum`."""
    plain, exclusive = keys
    if not isinstance(schema.get(exclusive), bool):
        return schema
    found = {key: value for key, value in schema.items() if key != exclusive}
    if schema[exclusive] and plain in found:
        found[exclusive] = found.pop(plain)
    return found


def _well_read(schema: Schema, keys: tuple[str, str], inwards: int, whole: bool) -> Schema:
    """Its bounds of one side, as llguidance understands them. `inwards`: the sign of what lies within; `whole`: of
    integers, whose bounds it has no trouble with but for their digits."""
    plain, exclusive = keys
    found, nearest = dict(schema), list[float]()
    for key in keys:
        bound: Json = schema.get(key)
        if _is_number(bound) and (
            _is_misread(bound) or (key == exclusive and not whole and _is_admitted(bound, inwards))
        ):
            del found[key]
            nearest.append(_next_well_read(bound, inwards))
    if nearest:
        kept = [found[plain]] if _is_number(found.get(plain)) else []
        found[plain] = max([*nearest, *kept], key=lambda value: value * inwards)
    return found


def _is_admitted(bound: float, inwards: int) -> bool:
    """Whether llguidance may take it for a value though it is none: a whole number, where the other bound is less than
    one away on the far side of zero."""
    return bound * inwards >= 0 and float(bound).is_integer()


def _next_well_read(bound: float, inwards: int) -> float:
    if abs(bound) < LEAST_STEP:
        return inwards * LEAST_STEP if bound * inwards >= 0 else 0
    near = math.nextafter(bound, inwards * math.inf)
    while _is_misread(near):
        near = math.nextafter(near, inwards * math.inf)
    return near


def _is_misread(value: float) -> bool:
    """Its digits are read as a double, which is then divided by a power of ten: that rounds twice."""
    if not isinstance(value, float) or not math.isfinite(value):
        return False
    digits, exponent = _written(value)
    if -exponent > MOST_DECIMALS:
        return True
    return abs(value) != (digits * float(f"1e{exponent}") if exponent >= 0 else digits / float(f"1e{-exponent}"))


def _written(value: float) -> tuple[float, int]:
    """Its digits as they stand in JSON, and the power of ten that they are multiplied by."""
    digits, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = digits.partition(".")
    return float(whole + fraction), int(exponent or 0) - len(fraction)


def _check_values(schema: Schema, place: str) -> None:
    named = [(schema["const"], f"{place}.const")] if "const" in schema else []
    choices = schema.get("enum")
    if isinstance(choices, list):
        named += [(one, f"{place}.enum[{number}]") for number, one in enumerate(choices)]
    for value, where in named:
        todo = [value]
        while todo:
            one = todo.pop()
            if why := _why_not(one):
                raise SchemaRefused(where, f"{_told(one)} {why}")
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


def _why_not(value: Json) -> str | None:
    """Why it cannot be held to."""
    if _is_far(value):
        return _WHY
    return _WHY_LONG if _is_number(value) and _is_misread(value) else None


def _is_far(value: Json) -> bool:
    return _is_number(value) and abs(value) > EXACT


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _told(value: Json) -> str:
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
