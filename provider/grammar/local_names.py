"""References of a schema by name, `#anchor` or an `$id`, written as pointers from its root, which all that reads a
schema here understands. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from provider.grammar.limits import MAX_DEPTH

Json = Any
"""A decoded JSON value."""

MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
PARTS = ("items", "additionalProperties", "additionalItems")
_NAMES = ("$id", "$anchor", "$dynamicAnchor")
_KEYWORDS = tuple(dict.fromkeys((*MAPS, *LISTS, *PARTS)))


def by_pointers(schema: Json) -> Json:
    """What leads nowhere in it stays as it is. Schemas that are nested too deeply to be taken are not looked at."""
    if not any(isinstance(part.get(name), str) for part in _walk(schema, 0) for name in _NAMES):
        return schema
    names = _Names()
    names.learn(schema, "", "", 0)
    return names.rewritten(schema, "", 0)


def followed(schema: Json, pointer: str) -> Json:
    """As `led_to`, without the place."""
    found = led_to(schema, pointer, "")
    return None if found is None else found[0]


def led_to(schema: Json, pointer: str, place: str) -> tuple[Json, str] | None:
    """What a reference leads to that is a pointer within the schema, and where that is, the schema being at `place`.
    None for any other reference, and where there is nothing."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None
    for step in _steps(pointer):
        match schema:
            case dict() if step in schema:
                schema, place = schema[step], f"{place}.{step}"
            case list() if step.isdecimal() and int(step) < len(schema):
                schema, place = schema[int(step)], f"{place}[{step}]"
            case _:
                return None
    return schema, place


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer.removeprefix("#")).split("/")[1:]]


@dataclass(slots=True)
class _Names:
    """`resources`: pointers of what has an `$id`, by its absolute form; `anchors`: by that and their name."""

    resources: dict[str, str] = field(default_factory=lambda: {"": ""})
    anchors: dict[tuple[str, str], str] = field(default_factory=dict)

    def learn(self, schema: Json, pointer: str, base: str, depth: int) -> None:
        if not isinstance(schema, dict):
            return
        base = _base(schema, base)
        self.resources.setdefault(base, pointer)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self.anchors.setdefault((base, schema[key]), pointer)
        own = schema.get("$id")
        if isinstance(own, str) and own.startswith("#"):  # how older drafts name an anchor
            self.anchors.setdefault((base, own[1:]), pointer)
        for part, step, _, _ in _members(schema, depth):
            self.learn(part, pointer + step, base, depth + 1)

    def rewritten(self, schema: Json, base: str, depth: int) -> Json:
        if not isinstance(schema, dict):
            return schema
        base = _base(schema, base)
        found = {key: value for key, value in schema.items() if key not in _NAMES or not isinstance(value, str)}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found["$ref"] = self._pointer(reference, base)
        for part, _, key, name in _members(schema, depth):
            new = self.rewritten(part, base, depth + 1)
            if name is None:
                found[key] = new
            else:
                found[key] = found[key].copy() if found[key] is schema[key] else found[key]
                found[key][name] = new
        return found

    def _pointer(self, reference: str, base: str) -> str:
        resource, fragment = base, reference.removeprefix("#")
        if not reference.startswith("#"):
            resource, fragment = urldefrag(_joined(base, reference))
        if fragment and not fragment.startswith("/"):
            pointer = self.anchors.get((resource, fragment))
            return reference if pointer is None else f"#{pointer}"
        pointer = self.resources.get(resource)
        return reference if pointer is None else f"#{pointer}{fragment}"


def _base(schema: dict[str, Json], base: str) -> str:
    own = schema.get("$id")
    return urldefrag(_joined(base, own))[0] if isinstance(own, str) and not own.startswith("#") else base


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # no address at all, such as one of a network that is none
        return reference


def _walk(schema: Json, depth: int) -> Iterator[dict[str, Json]]:
    if isinstance(schema, dict):
        yield schema
        for part, _, _, _ in _members(schema, depth):
            yield from _walk(part, depth + 1)


def _members(schema: dict[str, Json], depth: int) -> Iterator[tuple[Json, str, str, Any]]:
    """The schemas within one, each with its step, its keyword, and its name or number there."""
    if depth > MAX_DEPTH:
        return
    for key in _KEYWORDS:
        value = schema.get(key)
        if isinstance(value, dict) and key in MAPS:
            yield from ((part, f"/{key}/{_step(name)}", key, name) for name, part in value.items())
        elif isinstance(value, list) and key in LISTS:
            yield from ((part, f"/{key}/{number}", key, number) for number, part in enumerate(value))
        elif isinstance(value, dict) and key in PARTS:
            yield value, f"/{key}", key, None


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
