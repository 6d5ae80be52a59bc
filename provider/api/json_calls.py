"""Hermes' JSON form of tool calls, told while it is written: `{"name": NAME, "arguments": {...}}`."""

import re
from enum import Enum, auto

from provider.api.json_text import JsonText
from provider.api.parameter_types import NULLS, is_json, json_text, loads, parsed
from provider.api.tool_calls import CALL_CLOSE, Told, Verdict, begins

_MEMBER = re.compile(r'\s*"((?:[^"\\]|\\.){0,256})"\s*:\s*(?=\S)')
_HALF_MEMBER = re.compile(r'\s*(?:"(?:[^"\\]|\\.){0,256}(?:\\|"\s*(?::\s*)?)?)?')


class _At(Enum):
    OBJECT = auto()
    MEMBER = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    AFTER = auto()
    LOST = auto()
    """What is said makes no sense, and is dropped up to the end tag."""


class JsonCalls:
    """Owner: the parser of one answer. Arguments are told once the name is known."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._at = _At.OBJECT
        self._verdict = Verdict.OPEN
        self._text = ""
        self._calls = 0
        self._new_call()

    @property
    def rest(self) -> str:
        return self._text

    def read(self, text: str) -> Verdict:
        self._text += text
        while self._verdict is Verdict.OPEN and self._text and self._advance():
            pass
        return self._verdict

    def finish(self, cut: bool) -> Verdict:
        if self._begun and not self._argued:
            if cut:
                return Verdict.OPEN
            self._told.argue(self._value.close())
            return Verdict.ENDED
        return Verdict.ENDED if self._calls or self._begun else Verdict.NO_CALL

    def _new_call(self) -> None:
        self._name: str | None = None
        self._early: str | None = None
        """Arguments that came before the name."""
        self._begun = self._argued = False
        self._member = ""
        self._value = JsonText()
        self._said: list[str] = []
        """The value of a member that is needed whole."""

    def _advance(self) -> bool:
        match self._at:
            case _At.OBJECT:
                return self._open_object()
            case _At.MEMBER:
                return self._read_member()
            case _At.VALUE:
                return self._read_value()
            case _At.AFTER_VALUE:
                return self._after_value()
            case _At.AFTER:
                return self._after()
            case _At.LOST:
                return self._drop()

    def _open_object(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        if self._text[0] != "{":
            return self._lose()
        self._text = self._text[1:]
        self._at = _At.MEMBER
        return True

    def _read_member(self) -> bool:
        if self._text.lstrip().startswith("}"):
            return self._close_object()
        found = _MEMBER.match(self._text)
        if found is None:
            return False if _HALF_MEMBER.fullmatch(self._text) else self._lose()
        self._member = found[1]
        self._value, self._said = JsonText(), []
        self._text = self._text[found.end() :]
        self._at = _At.VALUE
        if self._streams() and self._name is not None:
            self._begin(self._name)
        return True

    def _streams(self) -> bool:
        return self._member == "arguments" and not self._begun and self._text.startswith("{")

    def _read_value(self) -> bool:
        text, self._text = self._text, ""
        said = self._value.push(text)
        if self._arguing:
            self._told.argue(said)
        else:
            self._said.append(said)
        if self._value.broken:
            self._text = self._value.rest
            return self._lose()
        if not self._value.done:
            return False
        self._text = self._value.rest
        self._at = _At.AFTER_VALUE
        return self._take_value()

    @property
    def _arguing(self) -> bool:
        return self._begun and not self._argued

    def _take_value(self) -> bool:
        if self._arguing:
            self._argued = True
        elif self._member == "name" and self._name is None:
            return self._take_name(loads("".join(self._said)))
        elif self._member == "arguments" and not self._begun:
            return self._take_arguments("".join(self._said))
        return True

    def _take_name(self, name: object) -> bool:
        if not isinstance(name, str):
            return self._lose()
        self._name = name
        if self._early is not None:
            self._begin_whole(name, self._early)
        return True

    def _take_arguments(self, said: str) -> bool:
        """Some models write the object as a string."""
        arguments = _object_in(loads(said).strip()) if said.startswith('"') else said
        if arguments == "null":
            arguments = "{}"
        if not arguments.startswith("{"):
            return self._lose()
        self._early = arguments
        if self._name is not None:
            self._begin_whole(self._name, self._early)
        return True

    def _begin(self, name: str) -> None:
        self._begun = True
        self._told.begin(name)

    def _begin_whole(self, name: str, arguments: str) -> None:
        self._begin(name)
        self._told.argue(arguments)
        self._argued = True

    def _after_value(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(","):
            self._text = text[1:]
            self._at = _At.MEMBER
            return True
        if text.startswith("}"):
            return self._close_object()
        return self._lose() if text else False

    def _close_object(self) -> bool:
        if not self._begun:
            if self._name is None:
                return self._lose()
            self._begin_whole(self._name, "{}")
        self._text = self._text.lstrip()[1:]
        self._calls += 1
        self._new_call()
        self._at = _At.AFTER
        return True

    def _after(self) -> bool:
        """Models close more than they have opened."""
        text = self._text.lstrip().lstrip("}] \n")
        if text.startswith(CALL_CLOSE):
            self._text = text[len(CALL_CLOSE) :]
            self._verdict = Verdict.ENDED
        elif text.startswith("{"):
            self._at = _At.OBJECT
        elif begins(text, CALL_CLOSE):
            return False
        else:
            self._verdict = Verdict.ENDED
        return True

    def _lose(self) -> bool:
        if not (self._calls or self._begun):
            self._verdict = Verdict.NO_CALL
            return True
        if self._arguing:
            self._told.argue(self._value.close())
            self._argued = True
        self._at = _At.LOST
        return True

    def _drop(self) -> bool:
        end = self._text.find(CALL_CLOSE)
        if end < 0:
            self._text = self._text[-len(CALL_CLOSE) :]
            return False
        self._text = self._text[end + len(CALL_CLOSE) :]
        self._verdict = Verdict.ENDED
        return True


def _object_in(text: str) -> str:
    """The JSON of the object that a string holds; of what cannot be read, as much as can. Else what is no object."""
    if not text or text in NULLS:
        return "{}"
    value = parsed(text)
    if isinstance(value, dict) and not is_json(text):
        return json_text(value)
    written = JsonText()
    return written.push(text) + written.close() if text.startswith("{") else text
