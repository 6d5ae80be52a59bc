"""Long answers without a long turn of the event loop: streams go on in between."""

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from coordinator.turns import Turns
from provider.api.events import encoded

Item = TypeVar("Item")


async def json_list(
    items: Iterable[Item], shown: Callable[[Item], Any], clock: Callable[[], float] = time.monotonic
) -> bytes:
    """A JSON list of all of them. Neither `items` nor what `shown` looks at may change meanwhile."""
    turns = Turns(clock)
    parts: list[bytes] = []
    for one in items:
        parts.append(encoded(shown(one)))
        await turns.taken()
    return b"[" + b",".join(parts) + b"]"


def json_object(**members: bytes) -> bytes:
    """Of members that are JSON already."""
    return b"{" + b",".join(encoded(name) + b":" + value for name, value in members.items()) + b"}"
