"""Reads what a client has sent; standard library only, for both servers."""

import gc
import json
import math
from typing import Any, NoReturn

from provider.api.wire import MAX_TOLD_NAME, Failure, invalid_request

MAX_BRACKETS = 500_000
"""Opening brackets of a body. Every list and object costs ten times what its bytes do, in each place that looks at it;
text with so many is longer than any context."""
MAX_COMMAS = 1_000_000
"""Of a body, whose members nobody else's request shall wait for; as token ids, or as text, it is as long as the longest
contexts."""
MAX_DIGITS = 4300
"""Of an integer, in both servers' readers of JSON."""
_LOST = object()


class NotFinite(ValueError):
    """Python reads and writes such numbers, and JSON has none."""


def refuse_constant(name: str) -> NoReturn:
    """To be a decoder's `parse_constant`."""
    raise NotFinite(f"{name} is not JSON")


def _finite(text: str) -> float:
    """What is read as infinite could not be sent on."""
    number = float(text)
    if math.isinf(number):
        raise NotFinite(f"{text[:20]} is too large a number")
    return number


STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=refuse_constant)
"""Raises NotFinite."""


def too_complex(body: bytes) -> Failure | None:
    """What is inside strings counts too: to tell it apart, the body would have to be read."""
    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        message = f"The body holds more than {MAX_BRACKETS} lists, objects, or opening brackets in its text."
    elif body.count(b",") > MAX_COMMAS:
        message = f"The body holds more than {MAX_COMMAS} members of lists and objects, or commas in its text."
    else:
        return None
    return invalid_request(message, code="body_too_complex")


def unreadable_number(body: bytes) -> Failure | None:
    """Of a body that could not be read, where that is the fault of a number: names its field."""
    try:
        with uncollected():
            value = json.loads(body, parse_int=_digits, parse_float=_double)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict | list):
        return None
    todo: list[tuple[Any, str]] = [(value, "")]
    while todo:
        one, place = todo.pop()
        for step, member in one.items() if isinstance(one, dict) else enumerate(one):
            if member is not _LOST and not isinstance(member, dict | list):
                continue
            where = f"{place}[{step}]" if isinstance(step, int) else f"{place}.{step[:MAX_TOLD_NAME]}"
            if member is _LOST:
                return _unreadable(where.removeprefix("."))
            todo.append((member, where))
    return None


def _unreadable(param: str) -> Failure:
    why = f"a number of more than {MAX_DIGITS} digits, or beyond what a double can hold, cannot be read"
    return invalid_request(f"{param}: {why}.", param, "invalid_json")


def _digits(text: str) -> object:
    return _LOST if len(text.removeprefix("-")) > MAX_DIGITS else 0


def _double(text: str) -> object:
    return _LOST if math.isinf(float(text)) else 0


class uncollected:
    """While millions of small objects are made, the collector looks through all of them over and over: a body of ten
    megabytes takes five seconds with it and half a second without. None of them can be garbage yet.

    A class, for a generator costs each frame a microsecond more."""

    __slots__ = ("_was_enabled",)

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._was_enabled:
            gc.enable()
