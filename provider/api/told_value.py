"""The value of one parameter in the XML form of tool calls, told as JSON while it is written."""

from provider.api.json_text import JsonText
from provider.api.parameter_types import NULLS, is_json, is_text, json_text, typed
from provider.api.tool_calls import Told

MAX_NULL_CHARS = 1024
"""A null with more white space around it than this is text."""


class IgnoredValue:
    """A parameter that comes a second time: the first was told already."""

    def push(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class ToldValue:
    """One value. A string is told as it comes, anything else when it has ended."""

    def __init__(self, types: set[str], told: Told) -> None:
        self._types = types
        self._told = told
        self._held = ""
        """The beginning of what may yet be a null."""
        self._parts: list[str] = []
        """Of a value that waits for its end."""
        self._begun = False
        self._string = False

    def push(self, text: str) -> None:
        if not self._begun and text:
            self._begun = True
            # The line break after the tag belongs to the markup.
            text = text.removeprefix("\n")
        if self._string:
            self._tell(text)
        elif not is_text(self._types):
            self._parts.append(text)
        else:
            self._held += text
            if not self._may_be_null(self._held):
                self._open_string()

    def close(self) -> None:
        if not self._string and is_text(self._types) and typed(self._held, self._types) is not None:
            self._open_string()
        if self._string:
            self._told.argue('"')
        else:
            self._told.argue(_json_of(self._held + "".join(self._parts), self._types))

    def _may_be_null(self, text: str) -> bool:
        said = text.strip()
        return "null" in self._types and len(text) < MAX_NULL_CHARS and any(null.startswith(said) for null in NULLS)

    def _open_string(self) -> None:
        self._string = True
        self._told.argue('"')
        self._tell(self._held)

    def _tell(self, text: str) -> None:
        if text:
            self._told.argue(json_text(text)[1:-1])


def _json_of(text: str, types: set[str]) -> str:
    """As it was written where that is JSON of a type that is wanted."""
    value = typed(text, types)
    if isinstance(value, str) or not is_json(text.strip()):
        return json_text(value)
    written = JsonText()
    return written.push(text.strip() + " ") + written.close()
