"""One JSON value, read as a model writes it and told again as valid JSON. Pure.

What is told never has to be taken back, so what models get wrong is mended as it comes: line breaks and quotes
that should have been escaped, escapes that do not exist, halves of surrogate pairs, a comma too many, Python's names of
constants, words without quotes. A number is told digit for digit. What readers of JSON cannot be relied on to take is
told otherwise: a number that is too long, or nested too deeply, as a string of its own text, and one that is beyond
what a double holds as the last that is not.
"""

import re
from enum import Enum, auto

from provider.api.parameter_types import MAX_DEPTH, MAX_NUMBER_CHARS, json_text, readable
from provider.api.told_text import NestedText, WordText, escaped

PIECE_CHARS = 4096
"""Each step copies what is not read yet."""
CONSTANTS = {"True": "true", "False": "false", "None": "null"}

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r'[^ \t\r\n,:{}\[\]"]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z")
LOST = "\\ufffd"
"""Half a surrogate pair, which no UTF-8 can hold."""


class _At(Enum):
    VALUE = auto()
    FIRST = auto()
    """Just inside a container, which may be empty."""
    NEXT = auto()
    """After a comma."""
    KEY = auto()
    COLON = auto()
    STRING = auto()
    TEXT = auto()
    """In a value that is told as a string of its own text."""
    AFTER = auto()
    DONE = auto()
    BROKEN = auto()


class JsonText:
    """Owner: the reader of one call. The value is a member of an object, so a comma or a brace follows it."""

    def __init__(self) -> None:
        self._at = _At.VALUE
        self._broke_at: _At | None = None
        self._open: list[str] = []
        self._rest = ""
        self._owed = ""
        """The comma before the next member, if there is one."""
        self._key: list[str] = []
        """A name is told with its colon: an unfinished one can be left out."""
        self._told: list[str] = []
        self._text: NestedText | WordText = WordText()

    @property
    def done(self) -> bool:
        return self._at is _At.DONE

    @property
    def broken(self) -> bool:
        """What came next can be no part of any JSON; what was told before can still be closed."""
        return self._at is _At.BROKEN

    @property
    def _over(self) -> bool:
        return self.done or self.broken

    @property
    def rest(self) -> str:
        """What follows the value, or where it broke; before that, what is not certain yet."""
        return self._rest

    def push(self, text: str) -> str:
        """The JSON that became certain. What follows the value is left in `rest`."""
        for start in range(0, len(text), PIECE_CHARS):
            self._rest += text[start : start + PIECE_CHARS]
            while self._rest and not self._over and self._advance():
                pass
            if self._over:
                self._rest += text[start + PIECE_CHARS :]
                break
        return self._taken()

    def close(self) -> str:
        """What makes valid JSON of all that was told."""
        if self.done:
            return ""
        unread = "" if self.broken else self._rest.strip()
        match self._broke_at or self._at:
            case _At.STRING | _At.TEXT:
                self._told.append('"')
            case _At.VALUE:
                self._told.append(_constant(unread) if unread else "null")
            case _:
                pass
        self._told += ["}" if one == "{" else "]" for one in reversed(self._open)]
        self._at, self._open, self._rest = _At.DONE, [], ""
        return self._taken()

    def _taken(self) -> str:
        told, self._told = "".join(self._told), []
        return told

    def _advance(self) -> bool:
        """False when more text is needed."""
        match self._at:
            case _At.STRING | _At.KEY:
                return self._string()
            case _At.TEXT:
                return self._read_text()
            case _At.VALUE:
                return self._skip_space() and self._value()
            case _At.COLON:
                return self._skip_space() and self._colon()
            case _At.FIRST | _At.NEXT:
                return self._skip_space() and self._member()
            case _:
                return self._skip_space() and self._after()

    def _skip_space(self) -> bool:
        self._rest = self._rest[_space(self._rest) :]
        return bool(self._rest)

    def _value(self) -> bool:
        first = self._rest[0]
        if first == '"':
            return self._move(_At.STRING, '"', 1)
        if first in "{[":
            if len(self._open) == MAX_DEPTH:
                return self._open_text(NestedText())
            self._open.append(first)
            return self._move(_At.FIRST, first, 1)
        return self._scalar()

    def _scalar(self) -> bool:
        found = _SCALAR.match(self._rest)
        if found is None:
            return self._break()
        if found.end() > MAX_NUMBER_CHARS:
            return self._open_text(WordText())
        if found.end() == len(self._rest):
            return False
        self._rest = self._rest[found.end() :]
        return self._ended(_constant(found[0]))

    def _open_text(self, text: NestedText | WordText) -> bool:
        self._text = text
        return self._move(_At.TEXT, '"', 0)

    def _read_text(self) -> bool:
        told, rest = self._text.push(self._rest)
        self._told.append(told)
        self._rest = rest or ""
        return rest is not None and self._ended('"')

    def _member(self) -> bool:
        first = self._rest[0]
        if first == ("}" if self._open[-1] == "{" else "]"):
            self._owed = ""
            return self._shut()
        if self._open[-1] == "[":
            self._owe()
            self._at = _At.VALUE
            return True
        if first != '"':
            return self._break()
        self._key = ['"']
        return self._move(_At.KEY, "", 1)

    def _owe(self) -> None:
        self._told.append(self._owed)
        self._owed = ""

    def _colon(self) -> bool:
        self._owe()
        return self._move(_At.VALUE, "".join(self._key) + '": ', 1)

    def _after(self) -> bool:
        first = self._rest[0]
        if first == ",":
            self._owed = ", "
            return self._move(_At.NEXT, "", 1)
        if first == ("}" if self._open[-1] == "{" else "]"):
            return self._shut()
        return self._break()

    def _shut(self) -> bool:
        self._open.pop()
        closed, self._rest = self._rest[0], self._rest[1:]
        return self._ended(closed)

    def _ended(self, told: str) -> bool:
        self._told.append(told)
        self._at = _At.AFTER if self._open else _At.DONE
        return True

    def _string(self) -> bool:
        told = self._key if self._at is _At.KEY else self._told
        plain = _PLAIN.match(self._rest)
        if plain is not None:
            told.append(plain[0])
            self._rest = self._rest[plain.end() :]
            return bool(self._rest)
        match self._rest[0]:
            case '"':
                return self._quote(told)
            case "\\":
                return self._escape(told)
            case control:
                told.append(escaped(control))
                self._rest = self._rest[1:]
                return True

    def _escape(self, told: list[str]) -> bool:
        if _HALF_ESCAPE.match(self._rest):
            return False
        half = _SURROGATE.match(self._rest)
        if half is not None:
            return self._surrogate(half.end(), told)
        escape = _ESCAPE.match(self._rest)
        told.append("\\\\" if escape is None else escape[0])
        self._rest = self._rest[1 if escape is None else escape.end() :]
        return True

    def _surrogate(self, end: int, told: list[str]) -> bool:
        """`end`: of the first half."""
        if _HALF_PAIR.match(self._rest):
            return False
        pair = _PAIR.match(self._rest)
        told.append(LOST if pair is None else pair[0])
        self._rest = self._rest[end if pair is None else pair.end() :]
        return True

    def _quote(self, told: list[str]) -> bool:
        """A quote ends the string where something follows that can follow a string."""
        at = 1 + _space(self._rest[1:])
        if at == len(self._rest):
            return False
        if self._rest[at] not in (":" if self._at is _At.KEY else ",}]"):
            told.append('\\"')
            self._rest = self._rest[1:]
            return True
        if self._at is _At.KEY:
            return self._move(_At.COLON, "", 1)
        self._rest = self._rest[1:]
        return self._ended('"')

    def _move(self, at: _At, told: str, taken: int) -> bool:
        self._told.append(told)
        self._rest = self._rest[taken:]
        self._at = at
        return True

    def _break(self) -> bool:
        self._broke_at, self._at = self._at, _At.BROKEN
        return False


def _space(text: str) -> int:
    found = _SPACE.match(text)
    return 0 if found is None else found.end()


def _constant(text: str) -> str:
    """A number, digit for digit, or a constant; what is neither was meant to be a string."""
    text = CONSTANTS.get(text, text)
    told = readable(text)
    return json_text(text) if told is None else told
