"""How a backend comes by what guides a sequence along its grammar: given once, asked for each sequence."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from provider.errors import GrammarError
from provider.generation import Sampling

if TYPE_CHECKING:  # who only simulates needs no grammar library
    from provider.grammar.guide import Guide


class Guided:
    """The part of provider.backends.base.Backend that is about grammars."""

    _guide: "Callable[[str], Guide] | None" = None

    def guide_with(self, guide: "Callable[[str], Guide]") -> None:
        """From now on it knows how to follow a grammar. `guide` may be called from any thread."""
        self._guide = guide

    def prepare(self, sampling: Sampling) -> None:
        self._guide_of(sampling)

    def _guide_of(self, sampling: Sampling) -> "Guide | None":
        if sampling.grammar is None:
            return None
        if self._guide is None:
            raise GrammarError("nothing here can follow a grammar")
        return self._guide(sampling.grammar)
