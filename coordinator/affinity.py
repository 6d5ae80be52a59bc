"""Which provider answered a conversation last: it may have kept what it had read of it."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from coordinator.estimates import pieces

KEPT = 10_000
"""Conversations; the ones longest not heard of are forgotten."""
OPENING = 4096
"""So many characters of each text, and so many texts or token ids, tell one conversation from another."""


class Affinities:
    """Owned by the event loop."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._last: OrderedDict[bytes, str] = OrderedDict()

    def last(self, conversation: bytes | None) -> str | None:
        return None if conversation is None else self._last.get(conversation)

    def served(self, conversation: bytes | None, provider_id: str) -> None:
        if conversation is None:
            return
        self._last[conversation] = provider_id
        self._last.move_to_end(conversation)
        if len(self._last) > self._kept:
            self._last.popitem(last=False)


def conversation_of(key: int, body: Mapping[str, Any]) -> bytes | None:
    """The same for every turn of a conversation: of the caller's key, the model, and all up to the first message of
    the user. None where there is no text. `body` may be JSON of any form."""
    found = hashlib.blake2b(f"{key}\0{body.get('model')}".encode(errors="replace"), digest_size=16)
    empty = True
    for part in _opening(body):
        for piece in islice(pieces(part), OPENING):
            found.update(b"\0" + str(piece)[:OPENING].encode(errors="replace"))
            empty = False
    return None if empty else found.digest()


def _opening(body: Mapping[str, Any]) -> Iterator[object]:
    for conversation, before in (("messages", "system"), ("input", "instructions")):
        if body.get(conversation) is not None:
            yield body.get(before)
            yield from _up_to_the_user(body[conversation])
            return
    prompt = body.get("prompt")
    yield prompt[:OPENING] if isinstance(prompt, list) else prompt


def _up_to_the_user(turns: object) -> Iterator[object]:
    if not isinstance(turns, list):
        yield turns
        return
    for turn in turns:
        yield turn
        if isinstance(turn, dict) and turn.get("role") == "user":
            return
