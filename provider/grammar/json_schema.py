"""JSON schemas that an answer can be held to: bounded in size, with what says nothing of the value left out.

What cannot be enforced is refused by its place, never passed over: an answer that ends in order is as its schema says.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from provider.errors import GrammarError, SchemaRefused
from provider.grammar.finite import endless, without_endless_parts
from provider.grammar.formats import PATTERNS, with_patterns
from provider.grammar.limits import (
    MAX_BLAMED_BYTES,
    MAX_DEPTH,
    MAX_GRAMMAR_BYTES,
    MAX_NESTED,
    MAX_PROPERTIES,
    MAX_SCHEMAS,
)
from provider.grammar.local_names import LISTS, MAPS, PARTS, by_pointers
from provider.grammar.numbers import with_exact_numbers
from provider.grammar.patterns import translated
from provider.grammar.property_names import with_named_properties
from provider.grammar.references import standing_alone
from provider.grammar.rules import grammar_of

Json = Any
"""A decoded JSON value."""
Schema = dict[str, Json]

ANY_OBJECT: Schema = {"type": "object"}
STYLE: Schema = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space is bounded: at most one space, behind a comma or a colon. A model that rambles would go on with it."""
MAX_LOOKS = 60
"""At parts of a schema that cannot be used, in search of the one that is to blame."""

_REMARKS = {"x-guidance", "title", "description", "default", "examples", "$comment"}
_OTHERS = {"additionalProperties", "patternProperties"}
_OF_OBJECTS = {"properties", "required", "minProperties", "maxProperties", *_OTHERS}
_COMBINED = {"anyOf", "oneOf", "$ref"}
_COUNTED = "is supported only where it follows from `required`, or from `properties` without any others"


Check = Callable[[str], None]
"""Raises GrammarError for a grammar that cannot be used."""


def usable(schema: Json, place: str, check: Check) -> Schema:
    """The schema as llguidance reads it. Raises SchemaRefused with the place of what is wrong, from `place` on."""
    _check_json(schema, place)
    pointed = by_pointers(schema)
    cleaned = _Cleaner(pointed, _stands_alone(schema)).clean(pointed, place, 0)
    whole = _whole(cleaned)
    size_bytes = len(json.dumps(whole))
    if size_bytes > MAX_GRAMMAR_BYTES:
        raise SchemaRefused(place, f"the schema is longer than {MAX_GRAMMAR_BYTES} bytes")
    try:
        check(_alone(whole))
    except GrammarError as error:
        culprit, reason = place, str(error)
        if size_bytes <= MAX_BLAMED_BYTES:
            culprit, reason = _blamed(whole, place, reason, check)
        raise SchemaRefused(culprit, reason) from None
    if (never := endless(whole, place)) is not None:
        raise SchemaRefused(never, "no finite value satisfies it: it has to hold another of itself, for ever")
    return {**without_endless_parts(whole), "x-guidance": STYLE}


def _check_json(schema: Json, place: str) -> None:
    """Raises SchemaRefused for what no grammar can say, whatever it stands for."""
    todo = [(schema, place, 0)]
    while todo:
        value, where, depth = todo.pop()
        if depth > MAX_NESTED:
            raise SchemaRefused(place, f"it is nested more than {MAX_NESTED} deep")
        match value:
            case str() if not _is_text(value):
                raise SchemaRefused(where, "it holds one half of a surrogate pair, which is no character")
            case dict():
                todo += [(name, where, depth) for name in value]
                todo += [(one, f"{where}.{name}", depth + 1) for name, one in value.items()]
            case list():
                todo += [(one, f"{where}[{number}]", depth + 1) for number, one in enumerate(value)]


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _whole(schema: Json) -> Schema:
    if isinstance(schema, dict):
        return schema
    return {} if schema else {"anyOf": []}


def _alone(schema: Schema) -> str:
    return grammar_of("start: @value", {"value": {**schema, "x-guidance": STYLE}})


class _Cleaner:
    """Owner: one look at one schema."""

    def __init__(self, root: Json, closes: bool) -> None:
        """`root`: what references lead into. `closes`: an object whose properties are named has no others, unless its
        schema says that it may. Whatever is open by mere silence is an invitation to ramble, and an answer without it
        is as valid."""
        self._root = root
        self._closes = closes
        self._seen = 0

    def clean(self, schema: Json, place: str, depth: int) -> Json:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaRefused(place, "a schema must be an object, or true or false")
        self._seen += 1
        if self._seen > MAX_SCHEMAS:
            raise SchemaRefused(place, f"there are more than {MAX_SCHEMAS} schemas within one another")
        if depth > MAX_DEPTH:
            raise SchemaRefused(place, f"schemas are nested more than {MAX_DEPTH} deep")
        if len(_dict(schema.get("properties"))) > MAX_PROPERTIES:
            raise SchemaRefused(f"{place}.properties", f"there are more than {MAX_PROPERTIES}")
        if schema.get("not") in ({}, True):
            return False
        named = with_named_properties(schema, self._root, place)
        says = {key: value for key, value in named.items() if _says(key, value)}
        cleaned = {key: self._member(key, value, f"{place}.{key}", depth) for key, value in says.items()}
        if self._closes and _is_described(cleaned):
            cleaned["additionalProperties"] = False
        return _without_counts(with_exact_numbers(with_patterns(cleaned), place), place)

    def _member(self, key: str, value: Json, place: str, depth: int) -> Json:
        if key in MAPS and isinstance(value, dict):
            parts = {name: self.clean(part, f"{place}.{name}", depth + 1) for name, part in value.items()}
            if key == "patternProperties":
                return {translated(name, f"{place}.{name}"): part for name, part in parts.items()}
            return parts
        if key in LISTS and isinstance(value, list):
            return [self.clean(part, f"{place}[{number}]", depth + 1) for number, part in enumerate(value)]
        if key in PARTS and isinstance(value, dict):
            return self.clean(value, place, depth + 1)
        return translated(value, place) if key == "pattern" and isinstance(value, str) else value


def _is_described(schema: Schema) -> bool:
    """Whether what it says of its properties is all that there is to say."""
    properties, required = schema.get("properties"), schema.get("required", [])
    named = isinstance(properties, dict) and isinstance(required, list) and set(map(str, required)) <= set(properties)
    return named and not _OTHERS & schema.keys()


def _without_counts(schema: Schema, place: str) -> Schema:
    """llguidance counts a property that comes twice as two. Raises SchemaRefused where the number of properties does
    not follow from the rest."""
    required, properties = schema.get("required"), _dict(schema.get("properties"))
    needed = len(set(map(str, required))) if isinstance(required, list) else 0
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    most = len(properties) if closed else math.inf
    for key, low, high in (("minProperties", -math.inf, needed), ("maxProperties", most, math.inf)):
        count = schema.get(key, needed if key == "minProperties" else most)
        if not isinstance(count, int | float) or not low <= count <= high:
            raise SchemaRefused(f"{place}.{key}", _COUNTED)
    return {key: value for key, value in schema.items() if key not in ("minProperties", "maxProperties")}


def _stands_alone(schema: Json) -> bool:
    """Whether every object is described in one place: where several describe it together, none can be closed."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            if "allOf" in part or (_COMBINED & part.keys() and _OF_OBJECTS & part.keys()):
                return False
            todo += part.values()
    return True


def _says(key: str, value: Json) -> bool:
    """Whether a member of a schema restricts the value, or may."""
    if key == "format":
        return value in PATTERNS if isinstance(value, str) else True
    if key == "uniqueItems":
        return value is not False
    return key not in _REMARKS


def _blamed(schema: Schema, place: str, reason: str, check: Check) -> tuple[str, str]:
    """The innermost part that cannot be used by itself either, and why."""
    looks = 0

    def fails(part: Json) -> str | None:
        nonlocal looks
        looks += 1
        try:
            check(_alone(standing_alone(_whole(part), schema)))
        except GrammarError as error:
            return str(error)
        return None

    part = schema
    while (found := _first_failing(part, place, fails, lambda: looks < MAX_LOOKS)) is not None:
        part, place, reason = found
    return place, reason


def _first_failing(
    schema: Schema, place: str, fails: Callable[[Json], str | None], may_look: Callable[[], bool]
) -> tuple[Schema, str, str] | None:
    for part, where in _parts(schema, place):
        if not may_look():
            return None
        reason = fails(part)
        if reason is not None:
            return _whole(part), where, reason
    return None


def _parts(schema: Schema, place: str) -> Iterator[tuple[Json, str]]:
    for key in MAPS:
        yield from ((part, f"{place}.{key}.{name}") for name, part in _dict(schema.get(key)).items())
    for key in LISTS:
        parts = schema.get(key)
        if isinstance(parts, list):
            yield from ((part, f"{place}.{key}[{number}]") for number, part in enumerate(parts))
    for key in PARTS:
        if isinstance(schema.get(key), dict):
            yield schema[key], f"{place}.{key}"


def _dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
