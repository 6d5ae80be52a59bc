"""`propertyNames`, which llguidance does not know, said by what it does: by properties, or patterns of their names.
Pure."""

from typing import Any

from provider.errors import SchemaRefused
from provider.grammar.formats import with_patterns
from provider.grammar.limits import MAX_PROPERTIES
from provider.grammar.local_names import followed

Json = Any
"""A decoded JSON value."""
Schema = dict[str, Json]

_REMARKS = {"title", "description", "default", "examples", "$comment"}
_WHY = (
    "can be any texts, an `enum` or `const` of them, or those of a `pattern` or `format`; other than any only of an "
    "object without `properties` and `patternProperties`"
)


def with_named_properties(schema: Schema, root: Json, place: str) -> Schema:
    """One schema without those within it. Raises SchemaRefused where it cannot be said so."""
    if "propertyNames" not in schema:
        return schema
    others = {key: value for key, value in schema.items() if key != "propertyNames"}
    names = _said(schema["propertyNames"], root)
    if not names:
        return others
    kind = names.keys() - {"type"}
    if kind not in ({"enum"}, {"const"}, {"pattern"}) or {"properties", "patternProperties"} & others.keys():
        raise SchemaRefused(f"{place}.propertyNames", _WHY)
    value = others.pop("additionalProperties", True)
    if "pattern" in names:
        return {**others, "patternProperties": {names["pattern"]: value}, "additionalProperties": False}
    choices = names.get("enum", [names.get("const")])
    texts = [name for name in choices if isinstance(name, str)] if isinstance(choices, list) else []
    if len(texts) > MAX_PROPERTIES:
        raise SchemaRefused(f"{place}.propertyNames", f"there are more than {MAX_PROPERTIES}")
    return {**others, "properties": dict.fromkeys(texts, value), "additionalProperties": False}


def _said(names: Json, root: Json) -> Schema:
    """What it says of them; nothing: any name will do."""
    if isinstance(names, dict) and isinstance(names.get("$ref"), str):
        names = followed(root, names["$ref"])
    if names is True or not isinstance(names, dict):
        return {} if names is True else {"not": names}
    said = with_patterns({key: value for key, value in names.items() if key not in _REMARKS})
    return {} if said == {"type": "string"} else said
