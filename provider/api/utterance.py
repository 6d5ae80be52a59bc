"""One sequence as APIs of blocks tell it: its blocks, how much of it was thought, and which stop string ended it."""

from collections.abc import Sequence

from provider.api.blocks import Block, BlockEvent, Blocks, Grown, TextBlock, ThoughtBlock
from provider.api.likelihoods import Likelihoods
from provider.api.likelihoods import Told as Likely
from provider.api.output import OutputParser
from provider.api.thought import ThoughtCounter
from provider.generation import Delta, Finished
from provider.text import Decode


class Utterance:
    """Owner: one translation. `decode`, `stops` and `skip_special` as the engine has them."""

    def __init__(
        self,
        parser: OutputParser,
        decode: Decode,
        stops: Sequence[str],
        skip_special: bool,
        likelihoods: Likelihoods | None = None,
    ) -> None:
        """`likelihoods`: where probabilities are to be told."""
        self._parser = parser
        self._blocks = Blocks()
        self._decode = decode
        self._stops = stops
        self._skip_special = skip_special
        self._token_ids: list[int] = []
        self._told_chars = 0
        self._thought = ThoughtCounter(parser, decode)
        self._likelihoods = likelihoods

    @property
    def blocks(self) -> list[Block]:
        return self._blocks.all

    @property
    def thought_tokens(self) -> int:
        return self._thought.tokens

    def hear(self, event: Delta) -> list[BlockEvent]:
        self._token_ids += event.token_ids
        self._told_chars += len(event.text)
        events = self._blocks.take(self._parser.push(event.text))
        self._thought.hear(event.token_ids)
        if self._likelihoods is not None:
            self._likelihoods.hear(event)
            if said := _said(events):
                _tell(said, self._likelihoods.chat(self._likelihoods.take(self._thought.tokens)))
        return events

    def finish(self, event: Finished) -> list[BlockEvent]:
        events = self._blocks.take(self._parser.finish(cut=event.reason == "length"))
        if self._likelihoods is not None:
            rest = self._likelihoods.chat(self._likelihoods.finish(self._thought.tokens))
            if said := _said(events):
                _tell(said, rest)
            elif self.blocks and isinstance(last := self.blocks[-1], TextBlock):
                last.likely += rest
        return events + self._blocks.finish()

    def stop_string(self) -> str | None:
        """The one that ended the answer, if one did: it begins where what was told ends. Of several that begin there,
        the shortest was completed first."""
        if not self._stops:
            return None
        untold = self._decode(self._token_ids, self._skip_special)[self._told_chars :]
        return min(filter(untold.startswith, self._stops), key=len, default=None)


def _said(events: list[BlockEvent]) -> Grown | None:
    """The first piece that is no thought."""
    grown = (event for event in events if isinstance(event, Grown) and not isinstance(event.block, ThoughtBlock))
    return next(grown, None)


def _tell(said: Grown, likely: list[Likely]) -> None:
    """A call has no place for them."""
    if isinstance(said.block, TextBlock):
        said.likely.extend(likely)
        said.block.likely += likely
