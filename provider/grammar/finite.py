"""Whether any finite value satisfies a schema, found out without compiling it: a grammar that can only go on is
followed for ever, and its answer never ends.

Of each schema the kinds of values are computed that it can have, as a least fixed point: a value exists only if all
that it has to hold exist before it. What is not understood restricts nothing, so what is refused is certainly empty.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provider.grammar.local_names import LISTS, MAPS, PARTS, led_to

Json = Any
"""A decoded JSON value."""
Schema = dict[str, Json]
Kinds = frozenset[str]

KINDS: Kinds = frozenset(["object", "array", "string", "number", "boolean", "null"])
NOTHING: Kinds = frozenset()
MAX_ALTERNATIVES = 64
"""Of one schema; of more, what `anyOf` asks for is passed over."""
MAX_FOLLOWED = 100
"""References and alternatives within one another that hold of one value; beyond, it counts as satisfiable."""
MAX_LOOKS = 20_000
"""At parts of one schema, some tenths of a second; after more it counts as satisfiable."""
_WORD = re.compile(r"(\^?)([A-Za-z0-9_ -]*)(\$?)")
"""A pattern without any character that means something else."""
_BOUNDS = {
    "number": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    "string": (("minLength",), ("maxLength",)),
    "array": (("minItems",), ("maxItems",)),
    "object": (("minProperties",), ("maxProperties",)),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A schema, and its place in the request."""

    schema: Json
    place: str


Alternative = tuple[Part, ...]
"""What has to hold together."""


def endless(schema: Json, place: str) -> str | None:
    """The place of what can never come to its end; None where a finite value may exist."""
    look = _Look(schema, place)
    try:
        look.settle()
    except _TooMuch:
        return None
    return look.culprit()


def without_endless_parts(schema: Schema) -> Schema:
    """The same of all that a finite value satisfies, as far as it is found out: what is endless can be begun no more.
    Takes a schema that some finite value satisfies."""
    if not any(part is not schema and "$ref" in part for part in _dicts(schema)):
        return schema
    look = _Look(schema, "")
    try:
        look.settle_all()
    except _TooMuch:
        return schema
    return look.without_endless(schema)


class _TooMuch(Exception):
    pass


class _Look:
    """Owner: one question. What it finds out of a schema is kept by the schema's identity."""

    def __init__(self, root: Json, place: str) -> None:
        self._root = Part(root, place)
        self._looks = 0
        self._alternatives: dict[int, list[Alternative]] = {}
        self._kinds: dict[int, Kinds] = {}
        self._met: list[Part] = []

    def settle(self) -> None:
        """Raises _TooMuch."""
        self._meet(self._root)
        while self._grows():
            pass

    def settle_all(self) -> None:
        """Also of the parts that no value has to hold. Raises _TooMuch."""
        for part in _dicts(self._root.schema):
            self._meet(Part(part, ""))
        self.settle()

    def without_endless(self, schema: Schema) -> Schema:
        """`schema`: one that a finite value satisfies; once settled."""
        found = dict(schema)
        for key, value in schema.items():
            if key in MAPS and isinstance(value, dict):
                found[key] = {name: self._kept(part) for name, part in value.items()}
            elif key in LISTS and isinstance(value, list):
                found[key] = [self._kept(part) for part in value]
            elif key in PARTS and isinstance(value, dict):
                found[key] = self._kept(value)
        return found

    def _kept(self, part: Json) -> Json:
        if not isinstance(part, dict):
            return part
        return self.without_endless(part) if self._kinds_of(Part(part, "")) else False

    def _grows(self) -> bool:
        """Whether another look may find more."""
        met = list(self._met)
        grown = False
        for part in reversed(met):  # what was met later is often asked for by what was met before
            found = self._found(part)
            grown = grown or found != self._kinds[id(part.schema)]
            self._kinds[id(part.schema)] = found
        return grown or len(self._met) > len(met)

    def culprit(self) -> str | None:
        """Follows what is missing to where it asks for itself again."""
        part, seen = self._root, set[int]()
        if self._kinds_of(part):
            return None
        while True:
            seen.add(id(part.schema))
            lacking = self._lacking(part)
            if lacking is None or id(lacking.schema) in seen:
                return part.place
            part = lacking

    def _meet(self, part: Part) -> None:
        if isinstance(part.schema, dict) and id(part.schema) not in self._kinds:
            self._kinds[id(part.schema)] = NOTHING
            self._met.append(part)

    def _kinds_of(self, part: Part) -> Kinds:
        """As far as is known by now."""
        if isinstance(part.schema, dict):
            self._meet(part)
            return self._kinds[id(part.schema)]
        return NOTHING if part.schema is False else KINDS

    def _found(self, part: Part) -> Kinds:
        return NOTHING.union(*(self._kinds_together(one) for one in self._alternatives_of(part)))

    def _kinds_together(self, parts: Alternative) -> Kinds:
        kinds = KINDS.intersection(*(_own_kinds(part.schema) for part in parts))
        for kind in ("object", "array"):
            if kind in kinds and any(not self._exist(needed) for needed in _needs(kind, parts)):
                kinds -= {kind}
        return frozenset(kind for kind in kinds if not _is_empty(kind, parts))

    def _exist(self, needed: list[Part]) -> bool:
        """Whether one value can be all of these."""
        self._count()
        return bool(KINDS.intersection(*(self._kinds_of(part) for part in needed)))

    def _lacking(self, part: Part) -> Part | None:
        for parts in self._alternatives_of(part):
            for kind in ("object", "array"):
                for needed in _needs(kind, parts):
                    if not self._exist(needed):
                        return next((one for one in needed if not self._kinds_of(one)), None)
        return None

    def _alternatives_of(self, part: Part) -> list[Alternative]:
        key = id(part.schema)
        if key not in self._alternatives:
            self._alternatives[key] = self._expanded(part, frozenset())
        return self._alternatives[key]

    def _expanded(self, part: Part, followed: frozenset[int]) -> list[Alternative]:
        """With all that holds of the same value: references, `allOf`, and one each of `anyOf` and `oneOf`."""
        self._count()
        schema = part.schema
        if not isinstance(schema, dict):
            return [] if schema is False else [()]
        if id(schema) in followed:
            return []  # it is what it is: no value ever
        if len(followed) == MAX_FOLLOWED:
            raise _TooMuch
        followed |= {id(schema)}
        found: list[Alternative] = [(part,)]
        for target in self._targets(part):
            found = _product(found, self._expanded(target, followed))
        for member in _members(part, "allOf"):
            found = _product(found, self._expanded(member, followed))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                branches = [one for branch in _members(part, key) for one in self._expanded(branch, followed)]
                found = _product(found, branches)
        return found

    def _targets(self, part: Part) -> Iterator[Part]:
        reference = part.schema.get("$ref")
        found = led_to(self._root.schema, reference, self._root.place) if isinstance(reference, str) else None
        if found is not None:
            yield Part(*found)

    def _count(self) -> None:
        self._looks += 1
        if self._looks > MAX_LOOKS:
            raise _TooMuch


def _product(some: list[Alternative], others: list[Alternative]) -> list[Alternative]:
    if not others:
        return []
    if len(some) * len(others) > MAX_ALTERNATIVES:
        return some
    return [(*one, *other) for one in some for other in others]


def _own_kinds(schema: Json) -> Kinds:
    kinds = KINDS
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    if named is not None and all(isinstance(name, str) for name in names):
        kinds &= {"number" if name == "integer" else name for name in names}
    if "const" in schema:
        kinds &= {_kind_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        kinds &= {_kind_of(one) for one in schema["enum"]}
    return kinds


def _kind_of(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _needs(kind: str, parts: Alternative) -> Iterator[list[Part]]:
    """The values that one of this kind has to hold, each with all that is said of it."""
    yield from _properties(parts) if kind == "object" else _items(parts)


def _properties(parts: Alternative) -> Iterator[list[Part]]:
    required = {name for part in parts for name in _list(part.schema.get("required")) if isinstance(name, str)}
    for name in sorted(required):
        yield [one for part in parts for one in _property(part, name)]
    named = {name for part in parts for name in _named(part)}
    if max((_count_of(part.schema.get("minProperties")) for part in parts), default=0) > len(named):
        yield [one for part in parts if (one := _other_property(part)) is not None]


def _property(part: Part, name: str) -> list[Part]:
    """All that is said of it."""
    named, patterns = _named(part), _patterns(part)
    found = [Part(named[name], f"{part.place}.properties.{name}")] if name in named else []
    matches = {pattern: _matches(pattern, name) for pattern in patterns}
    found += [Part(patterns[one], f"{part.place}.patternProperties.{one}") for one, yes in matches.items() if yes]
    if found or None in matches.values() or "additionalProperties" not in part.schema:
        return found
    return [Part(part.schema["additionalProperties"], f"{part.place}.additionalProperties")]


def _patterns(part: Part) -> dict[str, Json]:
    patterns = part.schema.get("patternProperties")
    return patterns if isinstance(patterns, dict) else {}


def _matches(pattern: str, name: str) -> bool | None:
    """None: not known. Only plain words are looked for, for any other pattern may take for ever."""
    found = _WORD.fullmatch(pattern)
    if found is None:
        return None
    begins, word, ends = found.groups()
    if begins and ends:
        return name == word
    return name.startswith(word) if begins else name.endswith(word) if ends else word in name


def _named(part: Part) -> dict[str, Json]:
    properties = part.schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _other_property(part: Part) -> Part | None:
    if _patterns(part) or "additionalProperties" not in part.schema:
        return None
    return Part(part.schema["additionalProperties"], f"{part.place}.additionalProperties")


def _items(parts: Alternative) -> Iterator[list[Part]]:
    least = max((_count_of(part.schema.get("minItems")) for part in parts), default=0)
    listed = max((len(_first_items(part)) for part in parts), default=0)
    for number in range(min(least, listed + 1)):  # those behind the listed ones are all alike
        yield [one for part in parts if (one := _item(part, number)) is not None]


def _item(part: Part, number: int) -> Part | None:
    first = _first_items(part)
    if number < len(first):
        return first[number]
    rest = "additionalItems" if isinstance(part.schema.get("items"), list) else "items"
    return Part(part.schema[rest], f"{part.place}.{rest}") if rest in part.schema else None


def _first_items(part: Part) -> list[Part]:
    return _members(part, "items" if isinstance(part.schema.get("items"), list) else "prefixItems")


def _members(part: Part, key: str) -> list[Part]:
    return [Part(one, f"{part.place}.{key}[{number}]") for number, one in enumerate(_list(part.schema.get(key)))]


def _is_empty(kind: str, parts: Alternative) -> bool:
    """Whether bounds leave no value of this kind."""
    least, most = _BOUNDS.get(kind, ((), ()))
    lowest = max((bound for key in least for bound in _bounds(parts, key)), default=None)
    highest = min((bound for key in most for bound in _bounds(parts, key)), default=None)
    return lowest is not None and highest is not None and lowest > highest


def _bounds(parts: Alternative, key: str) -> Iterator[float]:
    for part in parts:
        value = part.schema.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield value


def _count_of(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _dicts(schema: Json) -> Iterator[Schema]:
    """Itself, and the schemas within it."""
    todo = [schema]
    while todo:
        one = todo.pop()
        if not isinstance(one, dict):
            continue
        yield one
        for key, value in one.items():
            if key in MAPS and isinstance(value, dict):
                todo += value.values()
            elif key in LISTS and isinstance(value, list):
                todo += value
            elif key in PARTS:
                todo.append(value)
