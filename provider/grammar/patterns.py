"""Patterns of schemas, which are ECMA-262's, in the words of the regular expressions that llguidance reads. Pure.

Those are Rust's, in which some of the same signs mean something else: they would be held to in another sense.
"""

import re
from typing import NoReturn

from provider.errors import SchemaRefused

_ESCAPE = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|u(?P<unit>[0-9a-fA-F]{4})"
    r"|u\{(?P<point>[0-9a-fA-F]{1,6})\}|x(?P<byte>[0-9a-fA-F]{2})|c(?P<control>[a-zA-Z])|(?P<nil>0)(?![0-9])"
    r"|(?P<property>[pP]\{[A-Za-z0-9_=]+\})|(?P<kind>[dDwWsS])|(?P<sign>[nrtvf])|(?P<itself>[^a-zA-Z0-9]))",
    re.DOTALL,
)
_SPACES = r"\t\n\x0B\f\r\x20\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}"
_KINDS = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES}
_SIGNS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12}
_ANY_IN_A_LINE = r"[^\n\r\u{2028}\u{2029}]"
_ANY = r"[\u{0}-\u{10FFFF}]"
_GROUP = re.compile(r"\((?:\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>|(?P<flag>i:|i\))|(?P<look><?[=!])|(?P<other>)))?")
_COUNT = re.compile(r"\{(?:[0-9]+(?:,[0-9]*)?\}|(?P<open>,[0-9]+\}))?")
_WHY_LOOK = "looks ahead or behind: it has to be said without, such as in a pattern or a length of its own"


def translated(pattern: str, place: str) -> str:
    """Raises SchemaRefused for what cannot be held to. What is no pattern at all may pass, and is found out later."""
    return _Translation(pattern, place).whole()


class _Translation:
    """Owner: one pattern."""

    def __init__(self, pattern: str, place: str) -> None:
        self._pattern = pattern
        self._place = place
        self._at = 0

    def whole(self) -> str:
        said = list[str]()
        while self._at < len(self._pattern):
            said.append(self._next())
        return "".join(said)

    def _next(self) -> str:
        match self._pattern[self._at]:
            case "\\":
                return self._escaped(within=False)
            case "[":
                return self._class()
            case "(":
                return self._group()
            case "{":
                return self._count()
            case ".":
                self._at += 1
                return _ANY_IN_A_LINE
            case char:
                self._at += 1
                return char

    def _group(self) -> str:
        found = _GROUP.match(self._pattern, self._at)
        assert found is not None
        if found["look"]:
            self._refuse(_WHY_LOOK)
        if found["other"] is not None:
            self._refuse(f"has a group that begins {self._pattern[self._at : self._at + 3]!r}, which is not known here")
        self._at = found.end()
        if found["flag"]:
            return f"(?{found['flag']}"
        return "(" if found[0] == "(" else "(?:"

    def _count(self) -> str:
        found = _COUNT.match(self._pattern, self._at)
        assert found is not None
        if found["open"]:
            self._refuse(f"counts up to {found['open'][1:-1]} without a beginning: write {{0{found['open']}")
        self._at = found.end()
        return found[0] if len(found[0]) > 1 else r"\{"

    def _class(self) -> str:
        self._at += 1
        negated = self._take("^")
        if self._take("]"):
            if not negated:
                self._refuse("has a class of no characters, `[]`, which no text fits")
            return _ANY
        items = list[str]()
        while not self._take("]"):
            items.append(self._item())
        return f"[{'^' if negated else ''}{''.join(items)}]"

    def _item(self) -> str:
        """A character of a class, a row of them, or one of the kinds."""
        first = self._one()
        if self._pattern[self._at : self._at + 1] != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._at += 1
        last = self._one()
        row = not any(one.startswith("[") or one[:2].lower() == r"\p" for one in (first, last))
        return f"{first}-{last}" if row else rf"{first}\-{last}"

    def _one(self) -> str:
        char = self._pattern[self._at : self._at + 1]
        if not char:
            self._refuse("has a class of characters without its end, `]`")
        if char == "\\":
            return self._escaped(within=True)
        self._at += 1
        return _literal(ord(char))

    def _escaped(self, within: bool) -> str:
        if within and self._pattern.startswith(r"\b", self._at):
            self._at += 2
            return r"\x08"
        found = _ESCAPE.match(self._pattern, self._at)
        if found is None:
            self._refuse(_why(self._pattern[self._at : self._at + 2]))
        self._at = found.end()
        if kind := found["kind"]:
            return f"[{'^' if kind.isupper() else ''}{_KINDS[kind.lower()]}]"
        if found["property"]:
            return f"\\{found['property']}"
        point = _point(found)
        if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
            self._refuse(f"has {found[0]}, which is no character")
        return _literal(point)

    def _take(self, char: str) -> bool:
        taken = self._pattern.startswith(char, self._at)
        self._at += taken
        return taken

    def _refuse(self, why: str) -> NoReturn:
        raise SchemaRefused(self._place, f"the pattern {why}")


def _point(found: re.Match[str]) -> int:
    if found["high"]:
        return 0x10000 + (int(found["high"], 16) - 0xD800) * 0x400 + int(found["low"], 16) - 0xDC00
    for name in ("unit", "point", "byte"):
        if found[name]:
            return int(found[name], 16)
    if found["control"]:
        return ord(found["control"]) % 32
    if found["sign"]:
        return _SIGNS[found["sign"]]
    return 0 if found["nil"] else ord(found["itself"])


def _literal(point: int) -> str:
    """A character that stands for itself."""
    char = chr(point)
    if char.isalnum() and char.isascii():
        return char
    return f"\\u{{{point:X}}}" if point < 0x20 or point > 0x7E or char in "<> " else f"\\{char}"


def _why(escape: str) -> str:
    match escape[1:]:
        case "":
            return "ends in a backslash"
        case "b" | "B":
            return f"asks for an edge of a word, {escape}: say which characters there may be beside"
        case "k":
            return f"refers back to a group, {escape}: it has to be written out"
        case digit if digit.isdigit() and digit != "0":
            return f"refers back to a group, {escape}: it has to be written out"
        case _:
            return f"has the escape {escape}, which ECMA-262 does not know"
