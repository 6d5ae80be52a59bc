"""Long answers without a long turn of the event loop: streams go on in between."""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from coordinator.turns import Turns

Item = TypeVar("Item")


async def json_list(
    items: Iterable[Item], shown: Callable[[Item], Any], clock: Callable[[], float] = time.monotonic
) -> bytes:
    """A JSON list of all of them. Neither `items` nor what `shown` looks at may change meanwhile."""
    turns = Turns(clock)
    parts: list[str] = []
    for one in items:
        parts.append(to_json(shown(one)))
        await turns.taken()
    return f"[{','.join(parts)}]".encode()


def json_object(**members: bytes) -> bytes:
    """Of members that are JSON already."""
    return b"{" + b",".join(to_json(name).encode() + b":" + value for name, value in members.items()) + b"}"


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
