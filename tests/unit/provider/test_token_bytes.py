import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from provider.models.token_bytes import TokenBytes
from tests.fixtures.grammars import TOKENIZER


@given(st.text())
def test_the_bytes_of_a_texts_tokens_are_its_own(text: str) -> None:
    assert b"".join(map(TOKENIZER.token_bytes, TOKENIZER.encode(text))) == text.encode()


def test_an_id_without_a_token_has_no_bytes() -> None:
    assert TOKENIZER.token_bytes(10**6) == b""


@pytest.mark.parametrize(
    ("token", "said"), [("▁the", b" the"), ("<0xE4>", b"\xe4"), ("ä", "ä".encode()), ("<s>", b"<s>")]
)
def test_a_sentencepiece_token_has_its_space_and_its_byte(token: str, said: bytes) -> None:
    tokenizer = Tokenizer(models.BPE({"▁the": 0, "<0xE4>": 1, "ä": 2, "Ġ": 3}, []))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    assert TokenBytes(tokenizer).of(tokenizer.token_to_id(token)) == said
