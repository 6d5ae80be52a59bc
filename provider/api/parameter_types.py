"""What a tool's schema makes of the text of a parameter: a string stays one, anything else is read as JSON."""

import ast
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from provider.api.decoding import refuse_constant
from provider.grammar.local_names import followed

Json = Any
"""A decoded JSON value."""

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
NULLS = ("null", "None")
MAX_DEPTH = 128
"""Of arguments. Beyond it readers of JSON give up, each at another depth."""
MAX_NUMBER_CHARS = 4096
"""Python's own json reads no integer of more than 4300 digits."""
MAX_NUMBER_BITS = int((MAX_NUMBER_CHARS - 2) * math.log2(10))
"""No integer of fewer bits is longer."""
TOO_LONG = f"a number in it has more than {MAX_NUMBER_CHARS} characters"
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def types_of(name: str, schema: Json) -> set[str]:
    """Every type that `schema` (of all parameters) allows the parameter `name`, as far as it says so."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return _types(properties.get(name), schema) if isinstance(properties, dict) else set()


def is_text(types: set[str]) -> bool:
    """Whether a value may be told as a string before its end is known, unless it begins like a null that is allowed."""
    return not types or "string" in types


def typed(text: str, types: set[str]) -> Json:
    """The value its types want, or the text as it is where no reading of it fits. A string stays a string."""
    if is_text(types) and not ("null" in types and text.strip() in NULLS):
        return text
    value = parsed(text.strip(), MAX_DEPTH - 1)
    return value if any(_fits(value, name) for name in types) else text


def parsed(text: str, max_depth: int = MAX_DEPTH) -> Json:
    """JSON, else a Python literal, which models write too; else the text itself. A number beyond what a double can
    hold is the last that it can."""
    with suppress(ValueError):
        return _loads(text, max_depth, _nearest)
    try:
        return loads(json.dumps(_literal(text)), max_depth)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def loads(text: str, max_depth: int = MAX_DEPTH) -> Json:
    """Raises ValueError, saying why, for what is not JSON, and for what readers of JSON cannot be relied on to take:
    infinite numbers, numbers of more than MAX_NUMBER_CHARS, and what is nested deeper than `max_depth`."""
    return _loads(text, max_depth, _finite)


def _loads(text: str, max_depth: int, parse_float: Callable[[str], float]) -> Json:
    try:
        value = json.loads(text, parse_constant=refuse_constant, parse_float=parse_float, parse_int=_short)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > max_depth and is_deep(value, max_depth):
        raise ValueError(TOO_DEEP)
    return value


def readable(text: str) -> str | None:
    """A number or a constant as it is, or the number that `parsed` makes of it; None for what is neither."""
    if is_json(text):
        return text
    with suppress(ValueError):
        return json_text(_loads(text, MAX_DEPTH, _nearest))
    return None


def is_json(text: str) -> bool:
    """Whether `loads` reads it."""
    try:
        loads(text)
    except ValueError:
        return False
    return True


def is_deep(value: Json, max_depth: int = MAX_DEPTH) -> bool:
    """Whether more lists and objects than that lie within one another."""
    level = [value]
    for _ in range(max_depth):
        level = [child for one in level for child in _children(one)]
        if not level:
            return False
    return any(isinstance(one, dict | list) for one in level)


def has_long_integer(value: Json) -> bool:
    todo = [value]
    while todo:
        one = todo.pop()
        if (
            isinstance(one, int)
            and one.bit_length() > MAX_NUMBER_BITS
            and abs(one) >= 10 ** (MAX_NUMBER_CHARS - (one < 0))
        ):
            return True
        todo += _children(one)
    return False


def json_text(value: Json) -> str:
    """Half a surrogate pair, which an escape can spell and UTF-8 cannot, becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _fits(value: Json, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float) and name == "integer":
        return value.is_integer()
    return isinstance(value, _JSON_TYPES.get(name, ()))


def _children(value: Json) -> Iterable[Json]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


def _finite(text: str) -> float:
    _check_length(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number in it is beyond what a double can hold")
    return value


def _nearest(text: str) -> float:
    _check_length(text)
    value = float(text)
    return value if math.isfinite(value) else math.copysign(sys.float_info.max, value)


def _short(text: str) -> int:
    _check_length(text)
    return int(text)


def _check_length(text: str) -> None:
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(TOO_LONG)


def _literal(text: str) -> Json:
    with warnings.catch_warnings():
        # The compiler warns of odd escapes, quoting what a model wrote.
        warnings.simplefilter("ignore")
        return ast.literal_eval(text)


def _types(schema: Json, root: Json) -> set[str]:
    """Each part is visited once, however it recurs."""
    types: set[str] = set()
    seen: set[int] = set()
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        types.update(_own_types(part))
        todo += [branch for key in ("anyOf", "oneOf", "allOf") for branch in _list(part.get(key))]
        todo.append(_referenced(part.get("$ref"), root))
    return types


def _own_types(part: dict[str, Json]) -> Iterable[str]:
    """Where none is named, those of the values that are."""
    if part.get("type") is not None:
        return [name for name in _list(part["type"]) if isinstance(name, str)]
    values = [part["const"]] if "const" in part else part.get("enum")
    return map(_type_of, values) if isinstance(values, list) else []


def _type_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = (name for name, kinds in _JSON_TYPES.items() if isinstance(value, kinds))
    return next(names, "string")


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _referenced(reference: Json, root: Json) -> Json:
    """`#/$defs/Name` within the schema of the same tool, which is `#`."""
    return followed(root, reference) if isinstance(reference, str) else None
