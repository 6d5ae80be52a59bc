"""The form in which grammars are written down and sent to workers: Lark rules, with JSON schemas by name."""

import json
from collections.abc import Mapping
from typing import Any

Json = Any
"""A decoded JSON value."""


class Rules:
    """Owner: whoever writes one grammar. The rule `start` is the whole text."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._schemas: dict[str, Json] = {}
        self._numbered = 0

    def add(self, name: str, expansion: str) -> None:
        self._lines.append(f"{name}: {expansion}")

    def fresh(self, prefix: str) -> str:
        """A name that no other rule has. Upper case: of a terminal."""
        self._numbered += 1
        return f"{prefix}_{self._numbered}"

    def schema(self, schema: Json) -> str:
        """How a rule says: a value of this schema."""
        name = f"schema_{len(self._schemas)}"
        self._schemas[name] = schema
        return f"@{name}"

    def grammar(self) -> str:
        return grammar_of("\n".join([*self._lines, ""]), self._schemas)


def literal(text: str) -> str:
    """How a rule says: this text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")  # which Lark does not read as it is


def grammar_of(rules: str, schemas: Mapping[str, Json]) -> str:
    """Lark rules, in which `@name` stands for a JSON schema of `schemas`."""
    named = [{"name": name, "json_schema": schema} for name, schema in schemas.items()]
    return json.dumps({"grammars": [{"name": "answer", "lark_grammar": rules}, *named]}, ensure_ascii=False)
