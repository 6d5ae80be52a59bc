"""What a tool's schema makes of the text of a parameter: a string stays one, anything else is read as JSON."""

import ast
import json
import math
import warnings
from typing import Any, NoReturn

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
    value = parsed(text.strip())
    return value if any(_fits(value, name) for name in types) else text


def parsed(text: str) -> Json:
    """JSON, else a Python literal, which models write too; else the text itself."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return loads(json.dumps(_literal(text)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def loads(text: str) -> Json:
    """Raises ValueError for what is not JSON, infinite numbers among it."""
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def json_text(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate, written as an escape, has no other form.
        return json.dumps(value)
    return text


def _fits(value: Json, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float) and name == "integer":
        return value.is_integer()
    return isinstance(value, _JSON_TYPES.get(name, ()))


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


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
        types.update(name for name in _list(part.get("type")) if isinstance(name, str))
        todo += [branch for key in ("anyOf", "oneOf", "allOf") for branch in _list(part.get(key))]
        todo.append(_referenced(part.get("$ref"), root))
    return types


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def _referenced(reference: Json, root: Json) -> Json:
    """`#/$defs/Name` within the schema of the same tool."""
    if not isinstance(reference, str):
        return None
    value = root
    for step in reference.removeprefix("#/").split("/"):
        value = value.get(step) if isinstance(value, dict) else None
    return value
