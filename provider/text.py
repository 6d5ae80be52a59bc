"""Text out of one sequence's tokens: only whole characters, and nothing from a stop string on.

Used where the tokens are sampled, because a stop string ends the sequence there.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from provider.generation import Reading
from provider.stop_strings import Sure, stops_of

Decode = Callable[[Sequence[int], bool], str]
"""`(ids, skip_special_tokens) -> text`, as `TextTokenizer.decode`."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

UNSETTLED_CHARS = 3
"""An unfinished character is at most 3 bytes; byte-fallback decoders print one replacement for each."""

WINDOW_TOKENS = 32
CONTEXT_TOKENS = 12
"""Bytes kept when a window of garbage is cut: 3 unsettled replacements of at most 3 bytes each, and a margin.

UTF-8 synchronises itself, so the unsettled end reads the same after the cut."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """`text` is certain now. `stopped_at` counts the tokens of the push up to and including the one that
    completed a stop string: the rest is to be rolled back, and nothing more to be pushed."""

    text: str
    stopped_at: int | None = None


class TextStream:
    """The text of one sequence, as its tokens arrive.

    All texts together equal the decoding of all tokens at once, cut before the stop string that was completed
    first; of several completed by the same character, the one that begins earliest. With a `reading` of the text, stop
    strings are those of its content alone.
    Work per token is bounded, whatever the tokens and however many the stop strings.
    """

    def __init__(
        self, decode: Decode, stop: Iterable[str] = (), skip_special: bool = True, reading: Reading | None = None
    ) -> None:
        self._characters = _Characters(decode, skip_special)
        self._stops = stops_of(stop, reading)
        self._stopped_by: str | None = None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._stopped_by

    def push(self, token_ids: Sequence[int]) -> Pushed:
        if self._stops is None:
            return Pushed(self._characters.push(token_ids))
        texts = []
        for count, token_id in enumerate(token_ids, start=1):
            texts.append(self._heard(self._stops.push(self._characters.push([token_id]))))
            if self._stopped_by is not None:
                return Pushed("".join(texts), stopped_at=count)
        return Pushed("".join(texts))

    def finish(self, cut: bool = False) -> str:
        """What was held back: an unfinished character, as U+FFFD, what may have been the beginning of a stop string or
        of what is no content. It may complete a stop string. `cut`: a limit has ended the sequence."""
        if self._stopped_by is not None:
            return ""
        text = self._characters.finish()
        if self._stops is None:
            return text
        told = self._heard(self._stops.push(text))
        return told if self._stopped_by is not None else told + self._heard(self._stops.finish(cut))

    def _heard(self, sure: Sure) -> str:
        self._stopped_by = sure.stop
        return sure.text


class _Characters:
    """Tokens to whole characters.

    The window holds the tokens already told, kept as context because a decoder may treat the beginning of its
    input apart (`_told` is their text), followed by the tokens whose end is not settled.
    """

    def __init__(self, decode: Decode, skip_special: bool) -> None:
        self._decode = decode
        self._skip_special = skip_special
        self._window: list[int] = []
        self._told = ""
        self._told_tokens = 0

    def push(self, token_ids: Sequence[int]) -> str:
        self._window.extend(token_ids)
        text = self._text(self._window)
        if not text.startswith(self._told):
            return self._restart() if self._is_long else ""
        settled = text[: len(text) - _unsettled_chars(text)]
        new = settled[len(self._told) :]
        if settled == text and new:
            self._keep(self._window[self._told_tokens :])
        elif new:
            self._told = settled
        if self._is_long:
            self._cut()
        return new

    def finish(self) -> str:
        text = self._text(self._window)
        return text[len(self._told) :] if text.startswith(self._told) else self._restart()

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._decode(token_ids, self._skip_special)

    @property
    def _is_long(self) -> bool:
        return len(self._window) > WINDOW_TOKENS

    def _keep(self, context: list[int]) -> None:
        """Everything is told: the newest tokens stay as the context of the next."""
        self._window = context[-CONTEXT_TOKENS:]
        self._told = self._text(self._window)
        self._told_tokens = len(self._window)

    def _cut(self) -> None:
        """Garbage, or tokens without text, have filled the window: only its end can still matter."""
        visible = [token_id for token_id in self._window if self._text([token_id])]
        self._window = visible[-CONTEXT_TOKENS:]
        text = self._text(self._window)
        self._told = text[: len(text) - _unsettled_chars(text)]
        self._told_tokens = 0

    def _restart(self) -> str:
        """The new tokens changed how the context reads and never settled: they are told by themselves."""
        new = self._window[self._told_tokens :]
        self._keep(new)
        return self._text(new)


def _unsettled_chars(text: str) -> int:
    tail = text[-UNSETTLED_CHARS:]
    return len(tail) - len(tail.rstrip(REPLACEMENT))
