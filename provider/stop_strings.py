"""Where a text has to stop: before the first stop string that is completed, in all of it or in its content alone.

What of a chat's text is content, is read here by the parser that tells the client of it, so both mean the same.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from provider.api.output import CallBegun, Content, OutputParser, Piece
from provider.api.tool_calls import Tools
from provider.generation import Reading

ANY_TOOL: Tools = {"": None}
"""Where calls begin and end depends on there being tools, not on which."""


@dataclass(frozen=True, slots=True)
class Sure:
    """`text`: what certainly comes before any stop string. `stop`: the one that follows it; nothing more is to come."""

    text: str
    stop: str | None = None


class Stops(Protocol):
    """Owner: the text of one sequence. Work per character is bounded, however many the stop strings."""

    def push(self, text: str) -> Sure: ...

    def finish(self, cut: bool) -> Sure:
        """What was held back. `cut`: a limit has ended the text."""
        ...


def stops_of(stops: Iterable[str], reading: Reading | None) -> Stops | None:
    """`reading`: the text is that of a chat's answer, and stop strings are those of its content. None without any."""
    matcher = StopMatcher(stops)
    if not matcher:
        return None
    return TextStops(matcher) if reading is None else ContentStops(matcher, reading)


class TextStops:
    """In all of the text."""

    def __init__(self, matcher: "StopMatcher") -> None:
        self._matcher = matcher
        self._held = ""

    def push(self, text: str) -> Sure:
        held = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            if matched := self._matcher.step(char):
                self._held = ""
                return Sure(held[: end - matched], held[end - matched : end])
        sure = len(held) - self._matcher.depth
        self._held = held[sure:]
        return Sure(held[:sure])

    def finish(self, cut: bool) -> Sure:
        held, self._held = self._held, ""
        return Sure(held)


class ContentStops:
    """In each stretch of content: none reaches across a call that a client is told of.

    Told is the text with all its markup, up to where it may be that the content has to end."""

    def __init__(self, matcher: "StopMatcher", reading: Reading) -> None:
        self._matcher = matcher
        self._parser = OutputParser(
            reading.thinking,
            ANY_TOOL if reading.calls else {},
            lambda: "",
            uncalled=reading.uncalled,
            value=reading.value,
        )
        self._told_chars = 0
        self._held: list[str] = []
        self._held_chars = 0
        self._begun: deque[tuple[int, str]] = deque()
        """The characters of content that may begin a stop string, and where each stands in the text."""

    def push(self, text: str) -> Sure:
        self._held.append(text)
        self._held_chars += len(text)
        if stopped := self._stopped(self._parser.push(text)):
            return stopped
        settled = self._parser.settled_chars
        return Sure(self._tell(min(settled, self._begun[0][0]) if self._begun else settled))

    def finish(self, cut: bool) -> Sure:
        return self._stopped(self._parser.finish(cut)) or Sure(self._tell(self._told_chars + self._held_chars))

    def _stopped(self, pieces: Iterable[Piece]) -> Sure | None:
        for piece in pieces:
            match piece:
                case Content(text, begin, end):
                    for place, char in enumerate(text, start=end - len(text)):
                        self._begun.append((max(begin, place), char))
                        if matched := self._matcher.step(char):
                            stop = list(self._begun)[-matched:]
                            return Sure(self._tell(stop[0][0]), "".join(char for _, char in stop))
                        while len(self._begun) > self._matcher.depth:
                            self._begun.popleft()
                case CallBegun():
                    self._matcher.restart()
                    self._begun.clear()
                case _:
                    pass
        return None

    def _tell(self, chars: int) -> str:
        """The text up to there."""
        new = chars - self._told_chars
        if new <= 0:
            return ""
        held = "".join(self._held)
        self._held = [held[new:]]
        self._held_chars -= new
        self._told_chars = chars
        return held[:new]


class StopMatcher:
    """Aho-Corasick: the depth of the state is how much of the text may yet begin a stop string."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._matched_chars = [0]
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0

    def __bool__(self) -> bool:
        return bool(self._next[0])

    @property
    def depth(self) -> int:
        return self._depth[self._state]

    def step(self, char: str) -> int:
        """How long the stop string is that `char` completes; of several, the longest. 0: none."""
        self._state = self._follow(self._state, char)
        return self._matched_chars[self._state]

    def restart(self) -> None:
        self._state = 0

    def _add(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[node] + 1)
                self._matched_chars.append(0)
            node = self._next[node][char]
        self._matched_chars[node] = len(stop)

    def _link(self) -> None:
        """Breadth first, so that the shorter suffixes a node falls back on are linked before it."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                self._fail[child] = self._follow(self._fail[node], char)
                self._matched_chars[child] = self._matched_chars[child] or self._matched_chars[self._fail[child]]
                queue.append(child)

    def _follow(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)
