"""Qwen's XML form of tool calls, told while it is written.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

A value is raw text, which may hold any markup: an end tag ends it only where the rest of the form follows.
"""

import re
from enum import Enum, auto

from provider.api.parameter_types import json_text, types_of
from provider.api.told_value import IgnoredValue, ToldValue
from provider.api.tool_calls import CALL_CLOSE, Told, Tools, Verdict, begins

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MAX_NAME_CHARS = 1024
MAX_SPACE_CHARS = 1024
"""More white space than this never stands between two tags of a call."""

_NAME = re.compile(r"([^>\n]*)(>|\n|\Z)")


class _At(Enum):
    FUNCTION = auto()
    NAME = auto()
    PARAMETERS = auto()
    KEY = auto()
    VALUE = auto()
    AFTER = auto()
    LOST = auto()
    """What is said makes no sense, and is dropped up to the end tag."""


class _Follows(Enum):
    YES = auto()
    NO = auto()
    UNKNOWN = auto()
    """What there is fits, and more is needed."""


class XmlCalls:
    """Owner: the parser of one answer."""

    def __init__(self, tools: Tools, told: Told) -> None:
        self._tools = tools
        self._told = told
        self._at = _At.FUNCTION
        self._verdict = Verdict.OPEN
        self._text = ""
        self._name = ""
        self._keys: set[str] | None = None
        """Of the call that has begun."""
        self._calls = 0
        self._value: ToldValue | IgnoredValue | None = None

    @property
    def rest(self) -> str:
        return self._text

    def read(self, text: str) -> Verdict:
        self._text += text
        while self._verdict is Verdict.OPEN and self._advance():
            pass
        return self._verdict

    def finish(self, cut: bool) -> Verdict:
        if self._keys is None:
            ended = self._calls and self._verdict is not Verdict.NO_CALL
            return Verdict.ENDED if ended else Verdict.NO_CALL
        whole = self._at is _At.VALUE and self._ends_whole()
        if cut and not whole:
            return Verdict.OPEN
        if self._value is not None:
            self._end_value(self._text[: self._end_of_value()])
        self._end_call()
        return Verdict.ENDED

    def _advance(self) -> bool:
        match self._at:
            case _At.FUNCTION:
                return self._expect({FUNCTION: _At.NAME})
            case _At.NAME:
                return self._function_name()
            case _At.PARAMETERS:
                return self._expect({PARAMETER: _At.KEY, FUNCTION_END: _At.AFTER})
            case _At.KEY:
                return self._parameter_key()
            case _At.VALUE:
                return self._read_value()
            case _At.AFTER:
                return self._after()
            case _At.LOST:
                return self._drop()

    def _expect(self, tags: dict[str, _At]) -> bool:
        text = self._text.lstrip()
        for tag, then in tags.items():
            if text.startswith(tag):
                self._text = text[len(tag) :]
                self._at = then
                if then is _At.AFTER:
                    self._begin_call()
                    self._end_call()
                return True
        if any(begins(text, tag) for tag in tags) and len(self._text) < MAX_SPACE_CHARS:
            return False
        return self._lose()

    def _lose(self) -> bool:
        if self._calls == 0 and self._keys is None:
            self._verdict = Verdict.NO_CALL
        else:
            self._at = _At.LOST
        return True

    def _named(self) -> str | None:
        """What stands before `>`, taken from the text; None while that is not certain. Empty for what is no name."""
        found = _NAME.match(self._text)
        if found is None or found[2] == "\n" or found.end(1) > MAX_NAME_CHARS:
            return ""
        if not found[2]:
            return None
        self._text = self._text[found.end() :]
        return found[1].strip()

    def _function_name(self) -> bool:
        name = self._named()
        if not name:
            return name is not None and self._lose()
        self._name = name
        self._at = _At.PARAMETERS
        return True

    def _parameter_key(self) -> bool:
        key = self._named()
        if not key:
            return key is not None and self._lose()
        self._begin_call()
        assert self._keys is not None
        if key in self._keys:
            self._value = IgnoredValue()
        else:
            separator = ", " if self._keys else ""
            self._keys.add(key)
            self._told.argue(f"{separator}{json_text(key)}: ")
            self._value = ToldValue(types_of(key, self._tools.get(self._name)), self._told)
        self._at = _At.VALUE
        return True

    def _begin_call(self) -> None:
        if self._keys is None:
            self._keys = set()
            self._told.begin(self._name)
            self._told.argue("{")

    def _end_call(self) -> None:
        self._told.argue("}")
        self._calls += 1
        self._keys = None

    def _read_value(self) -> bool:
        at = 0
        while True:
            end = self._find_end_tag(at)
            if end is None:
                self._tell_value(_before_end_tag(self._text))
                return False
            match _ends_value(self._text, end):
                case _Follows.YES:
                    self._end_value(self._text[:end])
                    self._at = _At.PARAMETERS
                    self._text = self._text[end:].removeprefix(PARAMETER_END)
                    return True
                case _Follows.UNKNOWN:
                    self._tell_value(end - (end > 0 and self._text[end - 1] == "\n"))
                    return False
                case _Follows.NO:
                    at = end + 1

    def _find_end_tag(self, at: int) -> int | None:
        found = [self._text.find(tag, at) for tag in (PARAMETER_END, FUNCTION_END)]
        return min((one for one in found if one >= 0), default=None)

    def _tell_value(self, chars: int) -> None:
        assert self._value is not None
        self._value.push(self._text[:chars])
        self._text = self._text[chars:]

    def _end_value(self, text: str) -> None:
        assert self._value is not None
        self._value.push(text.removesuffix("\n"))
        self._value.close()
        self._value = None

    def _ends_whole(self) -> bool:
        """Whether of the call only its very last tag is missing."""
        end = self._find_end_tag(0)
        after = "" if end is None else self._text[end:].removeprefix(PARAMETER_END).strip()
        return after.startswith(FUNCTION_END) and begins(after.removeprefix(FUNCTION_END).strip(), CALL_CLOSE)

    def _end_of_value(self) -> int:
        """What is still held may be the beginning of an end tag: at the end of the answer, it is."""
        end = self._find_end_tag(0)
        return _before_end_tag(self._text) if end is None else end

    def _after(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(CALL_CLOSE):
            self._text = text[len(CALL_CLOSE) :]
            self._verdict = Verdict.ENDED
        elif text.startswith(FUNCTION):
            self._at = _At.FUNCTION
        elif begins(text, CALL_CLOSE) or begins(text, FUNCTION):
            return False
        else:
            self._verdict = Verdict.ENDED
        return True

    def _drop(self) -> bool:
        end = self._text.find(CALL_CLOSE)
        if end < 0:
            self._text = self._text[-len(CALL_CLOSE) :]
            return False
        if self._keys is not None:
            self._end_call()
        self._text = self._text[end + len(CALL_CLOSE) :]
        self._verdict = Verdict.ENDED
        return True


def _ends_value(text: str, end: int) -> _Follows:
    """Whether the end tag at `end` ends the value."""
    if text.startswith(FUNCTION_END, end):
        # Of a parameter whose own end tag was forgotten.
        return _follows(text, end + len(FUNCTION_END), (CALL_CLOSE,))
    at = end + len(PARAMETER_END)
    next_ = _follows(text, at, (PARAMETER,))
    if next_ is _Follows.YES:
        return next_
    last = _follows(text, at, (FUNCTION_END,))
    if last is _Follows.YES:
        return _follows(text, text.index(FUNCTION_END, at) + len(FUNCTION_END), (FUNCTION, CALL_CLOSE))
    return _Follows.UNKNOWN if _Follows.UNKNOWN in (next_, last) else _Follows.NO


def _follows(text: str, at: int, tags: tuple[str, ...]) -> _Follows:
    rest = text[at : at + MAX_SPACE_CHARS + len(CALL_CLOSE)]
    said = rest.lstrip()
    if any(said.startswith(tag) for tag in tags):
        return _Follows.YES
    if any(begins(said, tag) for tag in tags) and len(rest) - len(said) < MAX_SPACE_CHARS:
        return _Follows.UNKNOWN
    return _Follows.NO


def _before_end_tag(text: str) -> int:
    """How much of `text`, which holds no end tag, certainly comes before one, or before the line break of one."""
    for length in range(min(len(PARAMETER_END), len(text)), 0, -1):
        end = text[-length:]
        if any(("\n" + tag).startswith(end) or begins(end, tag) for tag in (PARAMETER_END, FUNCTION_END)):
            return len(text) - length
    return len(text)
