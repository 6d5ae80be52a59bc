"""A part of a schema that is to be read without the rest keeps what its references lead to. Pure."""

from typing import Any

Json = Any
"""A decoded JSON value."""
Schema = dict[str, Json]

SHARED = ("$defs", "definitions")
WHOLE = "whole"
"""Where a part keeps a copy of the whole, which its references then lead into."""


def standing_alone(part: Schema, root: Schema) -> Schema:
    """`part` of `root`: with the shared definitions, or where it refers to anything else with a copy of all of it."""
    shared = {key: root[key] for key in SHARED if key in root}
    own = {key: value for key, value in part.items() if key not in SHARED}
    if _refers_elsewhere([shared, own]):
        return {**_moved(own), "$defs": {WHOLE: _moved(root)}}
    return {**shared, **own}


def _refers_elsewhere(schema: Json) -> bool:
    match schema:
        case dict():
            return _is_elsewhere(schema.get("$ref")) or any(_refers_elsewhere(one) for one in schema.values())
        case list():
            return any(_refers_elsewhere(one) for one in schema)
        case _:
            return False


def _is_elsewhere(reference: Json) -> bool:
    shared = tuple(f"#/{key}/" for key in SHARED)
    return isinstance(reference, str) and reference.startswith("#") and not reference.startswith(shared)


def _moved(schema: Json) -> Json:
    match schema:
        case dict():
            moved = {key: _moved(value) for key, value in schema.items()}
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference.startswith("#"):
                moved["$ref"] = f"#/$defs/{WHOLE}{reference.removeprefix('#')}"
            return moved
        case list():
            return [_moved(one) for one in schema]
        case _:
            return schema
