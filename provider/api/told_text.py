"""Values that are told as strings of their own text, because no reader of JSON could be relied on to take them. Pure.

Each reader is given text and answers the JSON of what became certain, without quotes, and what is left once it has
ended.
"""

import re

from provider.api.parameter_types import json_text

_WORD = re.compile(r'[^ \t\r\n,:{}\[\]"]+')
_PLAIN_IN_STRING = re.compile(r'[^"\\]+')
_PLAIN = re.compile(r'[^"{}\[\]<]+')


class WordText:
    """A number or a word, up to the first character that ends one."""

    def push(self, text: str) -> tuple[str, str | None]:
        found = _WORD.match(text)
        end = 0 if found is None else found.end()
        return escaped(text[:end]), None if end == len(text) else text[end:]


class NestedText:
    """A list or an object as it is written, up to its own end; `<` outside of its strings is no part of it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._in_escape = False

    def push(self, text: str) -> tuple[str, str | None]:
        at = 0
        while at < len(text):
            if self._in_escape:
                self._in_escape = False
                at += 1
                continue
            plain = (_PLAIN_IN_STRING if self._in_string else _PLAIN).match(text, at)
            if plain is not None:
                at = plain.end()
                continue
            if text[at] == "<" and not self._in_string:
                return escaped(text[:at]), text[at:]
            self._take(text[at])
            at += 1
            if self._depth == 0:
                return escaped(text[:at]), text[at:]
        return escaped(text), None

    def _take(self, mark: str) -> None:
        match mark:
            case "\\":
                self._in_escape = True
            case '"':
                self._in_string = not self._in_string
            case "{" | "[" if not self._in_string:
                self._depth += 1
            case "}" | "]" if not self._in_string:
                self._depth -= 1
            case _:
                pass


def escaped(text: str) -> str:
    return json_text(text)[1:-1]
