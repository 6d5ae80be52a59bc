"""Prompts of a wanted length that no two requests share, so that no cache of prefixes can answer for the model."""

import random
from dataclasses import dataclass
from typing import Protocol

ORDINARY_IDS = range(300, 1000)
"""In nearly every vocabulary these are ordinary pieces of text: special tokens lie below them or at the end."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class PromptStyle(Protocol):
    def make(self, tokens: int, seed: int) -> str | list[int]:
        """A prompt of about `tokens` tokens, another one for every seed."""
        ...


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Prompts as token ids: as long as was asked, to the token."""

    def make(self, tokens: int, seed: int) -> list[int]:
        return random.Random(seed).choices(ORDINARY_IDS, k=tokens)


@dataclass(frozen=True, slots=True)
class Words:
    """Prompts as text, for a server that takes no ids: about as long as was asked, by what a word costs there."""

    tokens_per_word: float

    def make(self, tokens: int, seed: int) -> str:
        return words(max(1, round(tokens / self.tokens_per_word)), seed)


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join("".join(rng.choices(LETTERS, k=rng.randint(2, 6))) for _ in range(count))
