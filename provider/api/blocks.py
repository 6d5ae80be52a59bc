"""The pieces of an answer gathered into blocks: a run of reasoning, a run of text, or one tool call. Pure.

APIs that speak of blocks (`content` of a message, `output` of a response) differ in words only. One block is open at
a time, so a block is complete before the next begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from provider.api.output import CallArguments, CallBegun, Content, Piece, Reasoning


@dataclass(slots=True)
class _Run:
    """`index` numbers the blocks of an answer, from 0."""

    index: int
    parts: list[str] = field(default_factory=list, init=False)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(slots=True)
class ThoughtBlock(_Run):
    pass


@dataclass(slots=True)
class TextBlock(_Run):
    """`likely`: the probabilities of its tokens, as OpenAI's APIs write them, where they are told."""

    likely: list[dict[str, Any]] = field(default_factory=list, init=False)


@dataclass(slots=True)
class CallBlock(_Run):
    """`text` is the JSON of its arguments."""

    call_id: str
    name: str


Block = ThoughtBlock | TextBlock | CallBlock


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """`text` has come; `block` holds it already, and `likely`, the probabilities of its tokens."""

    block: Block
    text: str
    likely: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Closed:
    """`last`: nothing of the answer follows."""

    block: Block
    last: bool


BlockEvent = Opened | Grown | Closed


class Blocks:
    """Owner: the translation of one sequence. `all` are the blocks in order."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None

    def take(self, pieces: Iterable[Piece]) -> list[BlockEvent]:
        return [event for piece in pieces for event in self._piece(piece)]

    def finish(self) -> list[BlockEvent]:
        return self._close(last=True)

    def _piece(self, piece: Piece) -> list[BlockEvent]:
        match piece:
            case Reasoning(text):
                begun = [] if isinstance(self._open, ThoughtBlock) else self._begin(ThoughtBlock(len(self.all)))
                return begun + self._grow(text)
            case Content(text):
                begun = [] if isinstance(self._open, TextBlock) else self._begin(TextBlock(len(self.all)))
                return begun + self._grow(text)
            case CallBegun(_, call_id, name):
                return self._begin(CallBlock(len(self.all), call_id, name))
            case CallArguments(_, text):
                return self._grow(text)
            case _:
                assert_never(piece)

    def _begin(self, block: Block) -> list[BlockEvent]:
        closed = self._close(last=False)
        self.all.append(block)
        self._open = block
        return [*closed, Opened(block)]

    def _grow(self, text: str) -> list[BlockEvent]:
        assert self._open is not None
        self._open.parts.append(text)
        return [Grown(self._open, text)]

    def _close(self, last: bool) -> list[BlockEvent]:
        block, self._open = self._open, None
        return [] if block is None else [Closed(block, last)]
