"""The text of a chat answer, as it arrives, taken apart into reasoning, content and tool calls.

The same pieces come out whatever the split of the text, and no markup is ever shown as content. A call is told while
it is written, from the moment it is certain to be one; what never becomes a call is given back as content.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from provider.api.json_calls import JsonCalls
from provider.api.tool_calls import CALL_OPEN, CallReader, Tools, Verdict
from provider.api.xml_calls import XmlCalls

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

MAX_GIVEN_BACK_CHARS = 2**20
"""What looked like calls and was none is read again, as content; beyond this, markup is text."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """`begin` and `end`: where it stands among the characters that the parser was given. A line break that was put in
    front of it, where a call was left out, stands at its beginning."""

    text: str
    begin: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


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

    `thinking`: the prompt has already opened the think block. Without `tools`, tool markup is ordinary text; of an
    answer that is to be `uncalled` it is left out, and so is the call. Where a `value` was asked for, the answer is one
    or calls, and what stands inside a value is its own. A think block counts only at the beginning of the answer.
    """

    def __init__(
        self, thinking: bool, tools: Tools, new_id: Callable[[], str], uncalled: bool = False, value: bool = False
    ) -> None:
        self._uncalled = uncalled
        self._may_be_value = value
        self._is_value = False
        self._at = _At.THINKING if thinking else _At.START
        self._tools = tools
        self._new_id = new_id
        self._heard_chars = 0
        self._buffer = ""
        self._pieces: list[Piece] = []
        self._reasoned = False
        self._spoken = False
        self._thought = False
        self._drop_blank_lines = True
        """The blank lines that follow `</think>` (which may be the prompt's end) or a call belong to the markup."""
        self._gap = ""
        """The white space before a call: part of the markup if it becomes one."""
        self._seam = ""
        """What keeps two stretches of content apart between which a call was left out."""
        self._reader: CallReader | None = None
        self._read: list[str] = []
        """What the reader was given; of use only as long as it is not `_certain` to be a call."""
        self._read_chars = 0
        self._certain = False
        self._given_back_chars = 0
        self._calls = 0

    @property
    def thinking(self) -> bool:
        """Whether the answer is inside its think block."""
        return self._at is _At.THINKING

    @property
    def thought(self) -> bool:
        """Whether the think block has been closed."""
        return self._thought

    @property
    def settled_chars(self) -> int:
        """How many characters have said all they will: whatever comes, what is content of the rest comes after them."""
        behind = len(self._buffer)
        if self._at is _At.CALL:
            if self._certain and self._reader is not None:
                behind += len(self._reader.rest)
            else:
                behind += len(self._gap) + len(CALL_OPEN) + self._read_chars
        return self._heard_chars - behind

    def push(self, text: str) -> list[Piece]:
        self._heard_chars += len(text)
        self._buffer += text
        while self._advance():
            pass
        return self._taken()

    def finish(self, cut: bool = False, stopped: bool = False) -> list[Piece]:
        """`cut`: a limit has ended the answer, so what may have been the beginning of markup is left out, and a call
        that has begun stays unfinished. Else the arguments of every call are whole. `stopped`: a stop string of the
        content begins here, so what may have been the beginning of anything else is content."""
        while self._at is _At.CALL and (self._leave_call() if stopped else self._finish_call(cut)):
            pass
        if stopped:
            self._keep_indentation()
        match self._at:
            case _At.START | _At.CONTENT:
                text = self._without_half_tag() if cut else self._buffer
                self._say(text, len(self._buffer) - len(text), last=True)
            case _At.THINKING:
                text = _before_partial(self._buffer, THINK_CLOSE) if cut else self._buffer
                self._reason(text.rstrip())
            case _At.CALL:
                pass
        self._buffer = ""
        return self._taken()

    def begin(self, name: str) -> None:
        """Called by the reader, as `argue` is."""
        self._certain = True
        self._drop_blank_lines = True
        if self._uncalled:
            self._seam = self._seam or self._gap or "\n"
            return
        self._pieces.append(CallBegun(self._calls, self._new_id(), name))
        self._calls += 1

    def argue(self, json: str) -> None:
        if self._uncalled:
            return
        index = self._calls - 1
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, CallArguments) and last.index == index:
            self._pieces[-1] = CallArguments(index, last.json + json)
        elif json:
            self._pieces.append(CallArguments(index, json))

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
        if self._may_be_value and self._buffer.strip():
            self._is_value = not self._buffer.lstrip().startswith(CALL_OPEN[0])
            self._may_be_value = False
        if not self._may_call:
            self._buffer = self._say(self._buffer, 0)
            return False
        said, tag, rest = self._buffer.partition(CALL_OPEN)
        if not tag:
            sure = len(_before_partial(said, CALL_OPEN).rstrip())
            self._buffer = self._say(said[:sure], len(said) - sure) + said[sure:]
            return False
        sure = len(said.rstrip())
        self._say(said[:sure], len(self._buffer) - sure)
        self._gap, self._buffer = said[sure:], rest
        self._at = _At.CALL
        return True

    @property
    def _may_call(self) -> bool:
        reads = (bool(self._tools) or self._uncalled) and not self._is_value
        return reads and self._given_back_chars < MAX_GIVEN_BACK_CHARS

    def _without_half_tag(self) -> str:
        return _before_partial(self._buffer, CALL_OPEN) if self._may_call else self._buffer

    def _collect_call(self) -> bool:
        text = self._buffer
        if self._reader is None:
            if not text.strip():
                return False
            is_json = text.lstrip().startswith("{")
            self._reader = JsonCalls(self) if is_json else XmlCalls(self._tools, self)
        self._buffer = ""
        if not self._certain:
            self._read.append(text)
            self._read_chars += len(text)
        match self._reader.read(text):
            case Verdict.OPEN:
                return False
            case Verdict.ENDED:
                self._end_call(self._reader.rest)
            case Verdict.NO_CALL:
                self._give_back()
        return True

    def _finish_call(self, cut: bool) -> bool:
        """True when something is left to say."""
        verdict = Verdict.NO_CALL if self._reader is None else self._reader.finish(cut)
        if verdict is Verdict.NO_CALL and not cut:
            self._give_back()
            while self._advance():
                pass
            return True
        return False

    def _leave_call(self) -> bool:
        """Always true: there may be another in what is left to say."""
        if self._certain and self._reader is not None:
            self._reader.finish(cut=False)
            self._end_call(self._reader.rest)
        else:
            self._give_back()
        while self._advance():
            pass
        return True

    def _end_call(self, rest: str) -> None:
        self._buffer = rest
        self._reader = None
        self._read = []
        self._read_chars = 0
        self._certain = False
        self._gap = ""
        self._at = _At.CONTENT

    def _give_back(self) -> None:
        """The tag is content; after it, another call may begin."""
        text = "".join(self._read) + self._buffer
        self._say(self._gap + CALL_OPEN, len(text), last=True)
        self._given_back_chars += len(text)
        self._end_call(text)

    def _reason(self, text: str) -> None:
        text = text if self._reasoned else text.lstrip()
        if text:
            self._reasoned = True
            self._pieces.append(Reasoning(text))

    def _keep_indentation(self) -> None:
        """What is blank, and has something behind it on its line, is no blank line."""
        if self._drop_blank_lines and self._buffer.isspace():
            self._buffer = self._buffer[self._buffer.rfind("\n") + 1 :]
            self._drop_blank_lines = False

    def _say(self, text: str, behind: int, last: bool = False) -> str:
        """Says `text`, which has been followed by `behind` characters; returns what is held because it may yet be a
        blank line to drop."""
        if self._drop_blank_lines:
            if text.isspace() and not last:
                return text
            text = _without_blank_lines(text)
        if text:
            self._drop_blank_lines = False
            seam, self._seam = self._seam if self._spoken else "", ""
            self._spoken = True
            end = self._heard_chars - behind
            self._pieces.append(Content(seam + text, end - len(text), end))
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
