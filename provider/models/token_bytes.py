"""The bytes of single tokens. A tokenizer's own decoding is of whole texts: it has no bytes for half a character."""

import re
from functools import cache

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_BEGIN = "\N{LOWER ONE EIGHTH BLOCK}"
"""What sentencepiece writes for a space."""


class TokenBytes:
    """Of a byte-level tokenizer (GPT-2, Qwen, Llama 3), whose tokens are written in an alphabet of 256 characters; of
    one with tokens for single bytes (`<0x0A>`: Llama 2, Gemma); or of one whose tokens are text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {id: token.content.encode() for id, token in tokenizer.get_added_tokens_decoder().items()}
        self._byte_level = "ByteLevel" in repr(tokenizer.decoder)

    def of(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        return _byte_level(token) if self._byte_level else _pieces(token)


def _byte_level(token: str) -> bytes:
    alphabet = _alphabet()
    try:
        return bytes(alphabet[char] for char in token)
    except KeyError:  # a token that was added to the vocabulary itself
        return token.encode()


def _pieces(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_WORD_BEGIN, " ").encode()


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's: bytes that print stand for themselves, the others for characters from U+0100 on (openai/gpt-2,
    `bytes_to_unicode`)."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printing]
    return {chr(value): value for value in printing} | {chr(0x100 + at): value for at, value in enumerate(others)}
