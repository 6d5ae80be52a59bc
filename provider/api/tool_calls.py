"""What the readers of `<tool_call>` have in common: Qwen's XML (`xml_calls.py`) and Hermes' JSON (`json_calls.py`)."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Protocol

Json = Any
"""A decoded JSON value."""

Tools = Mapping[str, Json]
"""Name to the schema of the parameters. A name that is not declared is still a call: its caller can say so."""

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


class Told(Protocol):
    """Who is told of the calls, in order."""

    def begin(self, name: str) -> None: ...

    def argue(self, json: str) -> None:
        """Further bytes of the JSON of the arguments of the call that has begun."""
        ...


class Verdict(Enum):
    OPEN = auto()
    """What comes next belongs to it."""
    ENDED = auto()
    """It was a call, or several; what follows them is in `rest`."""
    NO_CALL = auto()
    """It is text that looks like a call. Never after a call has begun."""


class CallReader(Protocol):
    """Reads what stands between `<tool_call>` and its end tag. What it tells, it never takes back."""

    @property
    def rest(self) -> str: ...

    def read(self, text: str) -> Verdict: ...

    def finish(self, cut: bool) -> Verdict:
        """Nothing follows. `cut`: the answer was ended by a limit, so a call that has begun stays unfinished; else
        what is missing of it is added, because models forget end tags. OPEN for what is unfinished."""
        ...


def begins(text: str, tag: str) -> bool:
    """Whether `text` is the beginning of `tag`, so that more is needed to tell."""
    return len(text) < len(tag) and tag.startswith(text)
