"""The text of a chat answer, as it arrives, taken apart into reasoning, content and tool calls.

The same pieces come out whatever the split of the text, and no markup is ever shown as content. A tool call
is whole or it is not one: what never becomes a call is given back as content, so nothing is lost.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from provider.api.tool_calls import Json, ParsedCall, Unparsed, parse_calls

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

MAX_END_TAGS = 64
"""How many end tags are taken for part of a value before a call is given up: each costs a parse."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Once for each call, before its arguments. `index` numbers the calls of the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Further bytes of the JSON text of a call's arguments."""

    index: int
    json: str


Piece = Reasoning | Content | CallBegun | CallArguments


class _At(Enum):
    START = auto()
    THINKING = auto()
    CONTENT = auto()
    CALL = auto()


class OutputParser:
    """Owner: the translation of one sequence.

    `thinking`: the prompt has already opened the think block. `tools`: name to JSON schema of the parameters;
    without any, tool markup is ordinary text. A think block counts only at the beginning of the answer.
    """

    def __init__(self, thinking: bool, tools: Mapping[str, Json], new_id: Callable[[], str]) -> None:
        self._at = _At.THINKING if thinking else _At.START
        self._tools = tools
        self._new_id = new_id
        self._buffer = ""
        self._pieces: list[Piece] = []
        self._reasoned = False
        self._thought = False
        self._drop_blank_lines = True
        """The blank lines that follow `</think>` (which may be the prompt's end) or a call belong to the markup."""
        self._gap = ""
        """The white space before a call: part of the markup if it becomes one."""
        self._searched = 0
        """The call in the buffer does not end before this."""
        self._end_tags = 0
        self._calls = 0

    @property
    def thinking(self) -> bool:
        """Whether the answer is inside its think block."""
        return self._at is _At.THINKING

    @property
    def thought(self) -> bool:
        """Whether the think block has been closed."""
        return self._thought

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        while self._advance():
            pass
        return self._taken()

    def finish(self) -> list[Piece]:
        match self._at:
            case _At.START | _At.CONTENT:
                self._say(self._buffer, last=True)
            case _At.THINKING:
                self._reason(self._buffer.rstrip())
            case _At.CALL:
                self._end_call()
        self._buffer = ""
        return self._taken()

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _advance(self) -> bool:
        """Takes what is certain from the buffer; true when the next state may take more."""
        match self._at:
            case _At.START:
                return self._start()
            case _At.THINKING:
                return self._think()
            case _At.CONTENT:
                return self._speak()
            case _At.CALL:
                return self._collect_call()

    def _start(self) -> bool:
        begun = self._buffer.lstrip()
        for tag, then in ((THINK_OPEN, _At.THINKING), (THINK_CLOSE, _At.CONTENT)):
            if begun.startswith(tag):
                self._buffer = begun[len(tag) :]
                self._drop_blank_lines = True
                self._thought = then is _At.CONTENT
                self._at = then
                return True
            if tag.startswith(begun):
                return False
        self._at = _At.CONTENT
        return True

    def _think(self) -> bool:
        thought, tag, rest = self._buffer.partition(THINK_CLOSE)
        if tag:
            self._reason(thought.rstrip())
            self._buffer = rest
            self._drop_blank_lines = True
            self._thought = True
            self._at = _At.CONTENT
            return True
        sure = len(_before_partial(self._buffer, THINK_CLOSE).rstrip())
        self._reason(self._buffer[:sure])
        self._buffer = self._buffer[sure:]
        return False

    def _speak(self) -> bool:
        if not self._tools:
            self._buffer = self._say(self._buffer)
            return False
        said, tag, rest = self._buffer.partition(CALL_OPEN)
        if not tag:
            sure = len(_before_partial(said, CALL_OPEN).rstrip())
            self._buffer = self._say(self._buffer[:sure]) + self._buffer[sure:]
            return False
        sure = len(said.rstrip())
        self._say(said[:sure])
        self._gap, self._buffer = said[sure:], rest
        self._searched = self._end_tags = 0
        self._at = _At.CALL
        return True

    def _collect_call(self) -> bool:
        end = self._buffer.find(CALL_CLOSE, self._searched)
        if end < 0:
            self._searched = max(self._searched, len(self._buffer) - len(CALL_CLOSE) + 1)
            return False
        calls = parse_calls(self._buffer[:end], self._tools)
        self._end_tags += 1
        if calls is Unparsed.UNFINISHED and self._end_tags < MAX_END_TAGS:
            self._searched = end + len(CALL_CLOSE)
        elif isinstance(calls, Unparsed):
            self._give_back(end)
        else:
            self._call(calls)
            self._buffer = self._buffer[end + len(CALL_CLOSE) :]
            self._at = _At.CONTENT
        return True

    def _call(self, calls: list[ParsedCall]) -> None:
        for call in calls:
            self._pieces.append(CallBegun(self._calls, self._new_id(), call.name))
            self._pieces.append(CallArguments(self._calls, call.arguments))
            self._calls += 1
        self._gap = ""
        self._drop_blank_lines = True

    def _end_call(self) -> None:
        """Models forget the end tag; a call that is otherwise whole counts."""
        calls = parse_calls(self._buffer, self._tools)
        if isinstance(calls, Unparsed):
            self._say(self._gap + CALL_OPEN + self._buffer, last=True)
        else:
            self._call(calls)

    def _give_back(self, end: int) -> None:
        """A call that is none is content, up to where another may begin inside it."""
        body = self._buffer[:end]
        nested = body.rfind(CALL_OPEN)
        kept = body[:nested] if nested >= 0 else body + CALL_CLOSE
        self._say(self._gap + CALL_OPEN + kept, last=True)
        self._buffer = self._buffer[len(kept) :]
        self._gap = ""
        self._at = _At.CONTENT

    def _reason(self, text: str) -> None:
        text = text if self._reasoned else text.lstrip()
        if text:
            self._reasoned = True
            self._pieces.append(Reasoning(text))

    def _say(self, text: str, last: bool = False) -> str:
        """Says `text`; returns what is held because it may yet be a blank line to drop."""
        if self._drop_blank_lines:
            if text.isspace() and not last:
                return text
            text = _without_blank_lines(text)
        if text:
            self._drop_blank_lines = False
            self._pieces.append(Content(text))
        return ""


def _before_partial(text: str, tag: str) -> str:
    """`text` without the longest end of it that may be the beginning of `tag`."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length]
    return text


def _without_blank_lines(text: str) -> str:
    """`text` from the first line on that is not blank, its indentation kept."""
    blank = len(text) - len(text.lstrip())
    return text[text.rfind("\n", 0, blank) + 1 :] if blank < len(text) else ""
