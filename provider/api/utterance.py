"""One sequence as APIs of blocks tell it: its blocks, how much of it was thought, and which stop string ended it."""

from collections.abc import Sequence

from provider.api.blocks import Block, BlockEvent, Blocks
from provider.api.output import THINK_CLOSE, OutputParser
from provider.generation import Delta
from provider.text import Decode

TAG_TOKENS = 16
"""More than any tokenizer makes of `</think>`."""


class Utterance:
    """Owner: one translation. `decode`, `stops` and `skip_special` as the engine has them."""

    def __init__(self, parser: OutputParser, decode: Decode, stops: Sequence[str], skip_special: bool) -> None:
        self._parser = parser
        self._blocks = Blocks()
        self._decode = decode
        self._stops = stops
        self._skip_special = skip_special
        self._token_ids: list[int] = []
        self._told_chars = 0
        self._thought_tokens: int | None = None

    @property
    def blocks(self) -> list[Block]:
        return self._blocks.all

    @property
    def thought_tokens(self) -> int:
        """With the tags of the think block; the whole of an answer that was cut while it thought."""
        if self._thought_tokens is not None:
            return self._thought_tokens
        return len(self._token_ids) if self._parser.thinking else 0

    def hear(self, event: Delta) -> list[BlockEvent]:
        self._token_ids += event.token_ids
        self._told_chars += len(event.text)
        events = self._blocks.take(self._parser.push(event.text))
        if self._parser.thought and self._thought_tokens is None:
            self._thought_tokens = self._end_of_thought(len(event.token_ids))
        return events

    def finish(self) -> list[BlockEvent]:
        return self._blocks.take(self._parser.finish()) + self._blocks.finish()

    def stop_string(self) -> str | None:
        """The one that ended the answer, if one did: it begins where what was told ends. Of several that begin there,
        the shortest was completed first."""
        if not self._stops:
            return None
        untold = self._decode(self._token_ids, self._skip_special)[self._told_chars :]
        return min(filter(untold.startswith, self._stops), key=len, default=None)

    def _end_of_thought(self, newest: int) -> int:
        """How many tokens there are up to the end of `</think>`, which is among the `newest`."""
        before = len(self._token_ids) - newest
        start = max(0, before - TAG_TOKENS)
        for end in range(before, len(self._token_ids)):
            if THINK_CLOSE in self._decode(self._token_ids[start : end + 1], False):
                return end + 1
        return len(self._token_ids)
