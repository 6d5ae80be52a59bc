"""Reads what a client has sent; standard library only, for both servers."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """While millions of small objects are made, the collector looks through all of them over and over: a body of ten
    megabytes takes five seconds with it and half a second without. None of them can be garbage yet."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
