"""Grammars made ready for one model's tokens. Lives where the tokens are drawn."""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from threading import Lock, Thread
from typing import Protocol

from llguidance import LLMatcher, LLTokenizer

from provider.errors import GrammarError
from provider.grammar.checking import checked
from provider.grammar.guide import Guide
from provider.grammar.limits import parser_limits

log = logging.getLogger(__name__)

KEPT = 64
"""Grammars kept ready: an agent asks for the same one again and again."""


class Vocabulary(Protocol):
    """What a grammar needs of a tokenizer. Implemented by provider.models.tokenizer."""

    eos_token_ids: frozenset[int]
    special_token_ids: frozenset[int]

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class Compiler:
    """Owner: a worker. It may be asked from any thread; a guide belongs to whoever asked."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Takes about 10 s for a million tokens, with the interpreter's lock held. `vocab_size`: the model's, which
        may be padded beyond the tokenizer's."""
        ends = sorted(vocabulary.eos_token_ids) or [0]
        words = _Words(vocabulary, vocab_size, ends[0])
        self._tokenizer = LLTokenizer(words, n_vocab=vocab_size, eos_token=ends)  # type: ignore[arg-type]  # by shape
        words.greedy = self._tokenizer.greedy_tokenize
        self._ends = vocabulary.eos_token_ids
        self._compiled = lru_cache(KEPT)(self._compile)

    def guide(self, grammar: str) -> Guide:
        """Of a sequence that begins; costs next to nothing for a grammar asked for lately. Raises GrammarError."""
        return Guide.of(self._compiled(grammar).deep_copy(), self._ends)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        return checked(matcher)


class Guides:
    """The compiler of a model, made when it is first asked for, or before. It may be asked from any thread."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._lock = Lock()
        self._compiler: Compiler | None = None
        self._failure: str | None = None

    def begin(self) -> Thread:
        """To make it, beside whatever else loads: to be joined before others are served, because with a large
        vocabulary the interpreter's lock is held for seconds."""
        thread = Thread(target=self._made, daemon=True)
        thread.start()
        return thread

    def guide(self, grammar: str) -> Guide:
        """As Compiler.guide. Raises GrammarError, also where a model's tokens cannot be guided."""
        compiler = self._made()
        if compiler is None:
            raise GrammarError(f"the tokens of this model cannot be guided: {self._failure}")
        return compiler.guide(grammar)

    def _made(self) -> Compiler | None:
        with self._lock:
            if self._compiler is None and self._failure is None:
                try:
                    self._compiler = Compiler(self._vocabulary, self._vocab_size)
                except Exception as error:  # of a tokenizer nobody has met yet: the model is served without grammars
                    log.exception("vocabulary_cannot_be_guided")
                    self._failure = f"{type(error).__name__}: {error}"
            return self._compiler


class _Words:
    """A tokenizer in the shape llguidance reads. Tokens that are ordinary text to the model, such as `<think>`, are
    ordinary text here, which its own reading of a tokenizer.json does not make of them."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    greedy: Callable[[str], list[int]] | None = None
    """How a text is told that the tokenizer reads as anything but text: the longest token that is text, one by one. (It
    could be told to take control tokens for text too, but only in a second instance of all its words.)"""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, end: int) -> None:
        self.eos_token_id = end
        self.tokens: Sequence[bytes] = [vocabulary.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids: Collection[int] = sorted(vocabulary.special_token_ids | vocabulary.eos_token_ids)
        self._control = frozenset(self.special_token_ids)
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> list[int]:
        """Of text that a grammar leaves no choice about: whatever it says, a schema's own words, it is no control
        token."""
        said = text.decode(errors="replace") if isinstance(text, bytes) else text
        tokens = self._vocabulary.encode(said)
        if self.greedy is None or self._says(tokens, said):
            return tokens
        return self.greedy(said)

    def _says(self, tokens: Sequence[int], text: str) -> bool:
        if not self._control.isdisjoint(tokens) or max(tokens, default=0) >= len(self.tokens):
            return False
        return b"".join(self.tokens[token] for token in tokens) == text.encode()
