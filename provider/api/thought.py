"""How many tokens of an answer were thought."""

from collections.abc import Sequence

from provider.api.output import THINK_CLOSE, OutputParser
from provider.text import Decode

WINDOW_TOKENS = 64
"""More than any tokenizer makes of `</think>`, and of what a stop string may hold back behind it."""


class ThoughtCounter:
    """Owner: the translation of one sequence. Counts with the tags of the think block; the whole of an answer that
    was cut while it thought."""

    def __init__(self, parser: OutputParser, decode: Decode) -> None:
        self._parser = parser
        self._decode = decode
        self._heard = 0
        self._window: list[int] = []
        self._ended: int | None = None

    @property
    def tokens(self) -> int:
        if self._ended is not None:
            return self._ended
        return self._heard if self._parser.thinking else 0

    def hear(self, token_ids: Sequence[int]) -> None:
        """After the parser has been told the text of these tokens."""
        self._heard += len(token_ids)
        if self._ended is not None:
            return
        self._window = [*self._window[-WINDOW_TOKENS:], *token_ids]
        if self._parser.thought:
            self._ended = self._heard - len(self._window) + self._end_of_thought()

    def _end_of_thought(self) -> int:
        """Counted within the window."""
        for end in range(1, len(self._window) + 1):
            if THINK_CLOSE in self._decode(self._window[:end], False):
                return end
        return len(self._window)
