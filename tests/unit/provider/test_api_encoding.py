"""Long text is refused before it is encoded whole, and only if it is too long."""

from collections.abc import Sequence

import pytest

from provider.api.encoding import PIECE_CHARS, WHOLE_CHARS, encode_within
from provider.errors import RequestFailed
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer


class Watched(ModelTokenizer):
    """Notes how long the texts are that it is given."""

    def __init__(self) -> None:
        super().__init__(BUNDLED_MODEL_DIR)
        self.lengths: list[int] = []

    def encode(self, text: str, special: bool = True) -> list[int]:
        self.lengths.append(len(text))
        return super().encode(text, special)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return super().decode(ids, skip_special_tokens)


LONG = "apple lemon " * (2 * WHOLE_CHARS // 12)


def test_ordinary_text_is_encoded_once_and_whole() -> None:
    tokenizer = Watched()
    text = "apple " * 100
    assert tokenizer.decode(encode_within(tokenizer, text, 10)) == text
    assert tokenizer.lengths == [len(text)]


def test_long_text_beyond_the_context_is_never_encoded_whole() -> None:
    tokenizer = Watched()
    with pytest.raises(RequestFailed) as refused:
        encode_within(tokenizer, LONG, 4096)
    failure = refused.value.failure
    assert (failure.status, failure.type) == (400, "exceed_context_size_error")
    assert failure.detail["n_ctx"] == 4096
    assert 4096 <= int(failure.detail["n_prompt_tokens"] or 0) <= len(tokenizer.encode(LONG[:PIECE_CHARS]))
    assert max(tokenizer.lengths) <= PIECE_CHARS


def test_long_text_that_fits_gives_the_ids_of_the_whole() -> None:
    tokenizer = Watched()
    ids = encode_within(tokenizer, LONG, 10**7)
    assert ids == ModelTokenizer(BUNDLED_MODEL_DIR).encode(LONG)


def test_half_a_surrogate_pair_is_read_as_a_replacement_character() -> None:
    tokenizer = ModelTokenizer(BUNDLED_MODEL_DIR)
    assert encode_within(tokenizer, "a\ud800b", 100) == tokenizer.encode("a\ufffdb")
    assert encode_within(tokenizer, "a\U0001f600b", 100) == tokenizer.encode("a\U0001f600b")
