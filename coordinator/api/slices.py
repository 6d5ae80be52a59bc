"""Long answers without a long turn of the event loop: streams go on in between."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")

SLICE = 50
"""Providers in one turn: one or two milliseconds."""


async def json_list(items: Sequence[Item], shown: Callable[[Item], Any]) -> bytes:
    """A JSON list of all of them. Neither `items` nor what `shown` looks at may change meanwhile."""
    parts: list[str] = []
    for start in range(0, len(items), SLICE):
        parts += [to_json(shown(one)) for one in items[start : start + SLICE]]
        await asyncio.sleep(0)
    return f"[{','.join(parts)}]".encode()


def json_object(**members: bytes) -> bytes:
    """Of members that are JSON already."""
    return b"{" + b",".join(to_json(name).encode() + b":" + value for name, value in members.items()) + b"}"


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
