"""One sequence as APIs of blocks tell it: its blocks, and how much of it was thought."""

from provider.api.blocks import Block, BlockEvent, Blocks, Grown, TextBlock, ThoughtBlock
from provider.api.likelihoods import Likelihoods
from provider.api.likelihoods import Told as Likely
from provider.api.output import OutputParser
from provider.api.thought import ThoughtCounter
from provider.generation import Delta, Finished
from provider.text import Decode


class Utterance:
    """Owner: one translation."""

    def __init__(self, parser: OutputParser, decode: Decode, likelihoods: Likelihoods | None = None) -> None:
        """`likelihoods`: where probabilities are to be told."""
        self._parser = parser
        self._blocks = Blocks()
        self._thought = ThoughtCounter(parser, decode)
        self._likelihoods = likelihoods

    @property
    def blocks(self) -> list[Block]:
        return self._blocks.all

    @property
    def thought_tokens(self) -> int:
        return self._thought.tokens

    def hear(self, event: Delta) -> list[BlockEvent]:
        events = self._blocks.take(self._parser.push(event.text))
        self._thought.hear(event.token_ids)
        if self._likelihoods is not None:
            self._likelihoods.hear(event)
            if said := _said(events):
                _tell(said, self._likelihoods.chat(self._likelihoods.take(self._thought.tokens)))
        return events

    def finish(self, event: Finished) -> list[BlockEvent]:
        events = self._blocks.take(self._parser.finish(event.reason == "length", event.stop is not None))
        if self._likelihoods is not None:
            rest = self._likelihoods.chat(self._likelihoods.finish(self._thought.tokens))
            if said := _said(events):
                _tell(said, rest)
            elif self.blocks and isinstance(last := self.blocks[-1], TextBlock):
                last.likely += rest
        return events + self._blocks.finish()


def _said(events: list[BlockEvent]) -> Grown | None:
    """The first piece that is no thought."""
    grown = (event for event in events if isinstance(event, Grown) and not isinstance(event.block, ThoughtBlock))
    return next(grown, None)


def _tell(said: Grown, likely: list[Likely]) -> None:
    """A call has no place for them."""
    if isinstance(said.block, TextBlock):
        said.likely.extend(likely)
        said.block.likely += likely
