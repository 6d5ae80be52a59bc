"""What may come next in one sequence whose text has to follow a grammar, as bits over the vocabulary."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

Words = NDArray[np.int32]
"""[R, ceil(V / 32)]: bit b of word w is token 32 * w + b. Set: the token may come."""
ANY = -1
"""The word of a row that nothing guides."""
TOO_MUCH = "what may come next takes more work to find out than it may"


@dataclass(slots=True)
class _Text:
    """How far a sequence has come in its grammar. Owner: its sampler."""

    matcher: LLMatcher
    ends: Collection[int]
    ended: bool = False
    failure: str | None = None


@dataclass(slots=True)
class Guide:
    """`ahead`: drafts that have not been drawn, which the position asked about follows."""

    _text: _Text
    _ahead: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, matcher: LLMatcher, ends: Collection[int]) -> "Guide":
        """Takes `matcher`. `ends` are the tokens that end a text, which is whole without them."""
        return cls(_Text(matcher, ends))

    @property
    def failure(self) -> str | None:
        """Why nothing can be said of what comes next. It stays: the sequence is to be ended."""
        return self._text.failure

    def note(self, token: int) -> None:
        """Remembers a token that was drawn. What is drawn behind an end is nobody's text."""
        text = self._text
        if text.ended or text.failure is not None:
            return
        if token in text.ends:
            text.ended = True
        elif text.matcher.try_consume_tokens([token]) != 1:
            text.failure = _reason(text.matcher) or f"token {token} does not follow the grammar"

    def after(self, tokens: Sequence[int]) -> "Guide":
        """As it would be once these had been drawn; this one stays as it is."""
        return Guide(self._text, [*self._ahead, *tokens])


def masks(guides: Sequence[Guide | None], vocab_size: int) -> Words:
    """A row for each position; None: one that nothing guides. A position behind a draft that its grammar forbids is
    open to all, because nothing can be drawn there that counts. The interpreter's lock is free meanwhile."""
    words = np.full((len(guides), -(-vocab_size // 32)), ANY, dtype=np.int32)
    asked = [(place, guide) for place, guide in enumerate(guides) if guide is not None and _asks(guide)]
    if asked:
        _fill(words, _runs(asked))
    for _, guide in asked:
        if guide._text.matcher.is_error():
            guide._text.failure = _reason(guide._text.matcher)
            words[[place for place, other in asked if other._text is guide._text]] = ANY
    return words


def allowed(guide: Guide, vocab_size: int) -> list[int] | None:
    """The tokens that may come; None: any may."""
    words = masks([guide], vocab_size)[0]
    if guide.failure is not None or (words == ANY).all():
        return None
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size]
    return [int(token) for token in np.flatnonzero(bits)]


Run = tuple[LLMatcher, int, list[int]]
"""A sequence, its first row, and the drafts that the rows after it follow."""


def _asks(guide: Guide) -> bool:
    return not guide._text.ended and guide._text.failure is None


def _runs(asked: Sequence[tuple[int, Guide]]) -> list[Run]:
    """The positions of one sequence are next to each other, each one draft further."""
    runs: dict[int, Run] = {}
    for place, guide in asked:
        _, first, drafts = runs.setdefault(id(guide._text), (guide._text.matcher, place, []))
        assert place - first == len(guide._ahead), "the positions of a sequence are next to each other"
        drafts += guide._ahead[len(drafts) :]
    return list(runs.values())


def _fill(words: Words, runs: Sequence[Run]) -> None:
    """Sequences at the same time, where there are several."""
    row_bytes = words.shape[1] * words.itemsize
    drafted = [run for run in runs if run[2]]
    plain = [(matcher, first) for matcher, first, drafts in runs if not drafts]
    if len(plain) == 1:
        matcher, first = plain[0]
        matcher.unsafe_compute_mask_ptr(words[first].ctypes.data, row_bytes)
    elif plain:
        _executor().unsafe_compute_mask_ptr(plain, words.ctypes.data, row_bytes, len(words))
    if drafted:
        _executor().unsafe_compute_mask_ptr_with_draft_token(drafted, words.ctypes.data, row_bytes, len(words))


@cache
def _executor() -> LLExecutor:
    return LLExecutor()


def _reason(matcher: LLMatcher) -> str:
    """Empty: nothing is wrong."""
    said = " ".join(matcher.get_error().partition("<")[0].split())
    if said.startswith("NoExtension"):
        return "nothing can come next"
    return TOO_MUCH if any(word in said for word in ("lexer", "too many", "fuel", "limit", "complex")) else said
