"""Reads what a client has sent; standard library only, for both servers."""

import gc

from provider.api.wire import Failure, invalid_request

MAX_BRACKETS = 500_000
"""Opening brackets of a body. Every list and object costs ten times what its bytes do, in each place that looks at it;
text with so many is longer than any context."""


MAX_COMMAS = 1_000_000
"""Of a body, whose members nobody else's request shall wait for; as token ids, or as text, it is as long as the longest
contexts."""


def too_complex(body: bytes) -> Failure | None:
    """What is inside strings counts too: to tell it apart, the body would have to be read."""
    if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        message = f"The body holds more than {MAX_BRACKETS} lists, objects, or opening brackets in its text."
    elif body.count(b",") > MAX_COMMAS:
        message = f"The body holds more than {MAX_COMMAS} members of lists and objects, or commas in its text."
    else:
        return None
    return invalid_request(message, code="body_too_complex")


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
