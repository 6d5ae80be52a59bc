"""The text of a sequence: decoding everything at once, whatever the split, and cut at stop strings."""

import gc
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.text import CONTEXT_TOKENS, WINDOW_TOKENS, Pushed, TextStream
from tests.soak import examples

TOKENIZER = Tokenizer.from_file(str(BUNDLED_MODEL_DIR / "tokenizer.json"))
IM_END = TOKENIZER.token_to_id("<|im_end|>")
VOCAB = TOKENIZER.get_vocab_size()


def decode(ids: Sequence[int], skip_special: bool) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=skip_special))


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def byte_ids(data: bytes) -> list[int]:
    """The single-byte tokens, so that a text can be cut inside any character."""
    return [TOKENIZER.token_to_id(ALPHABET[byte]) for byte in data]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in stand_ins]
    stand_ins |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [stand_ins[byte] for byte in range(256)]


ALPHABET = byte_alphabet()

texts = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("😀👩‍👩‍👧漢字é\ufffd<|im_end|>")), max_size=60)
any_ids = st.lists(st.integers(0, VOCAB - 1), max_size=60)
byte_runs = st.binary(max_size=80).map(byte_ids)
split_characters = texts.map(lambda text: byte_ids(text.encode()))
token_runs = st.one_of(texts.map(encode), any_ids, byte_runs, split_characters)
splits = st.lists(st.integers(1, 8), min_size=1, max_size=20)


def pushes(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """`ids` in runs of the given sizes, over and over."""
    runs, start, turn = [], 0, 0
    while start < len(ids):
        size = sizes[turn % len(sizes)]
        runs.append(ids[start : start + size])
        start, turn = start + size, turn + 1
    return runs


def run(
    ids: list[int], sizes: list[int], stop: Sequence[str] = (), skip_special: bool = True
) -> tuple[str, int | None]:
    """The whole text, and how many tokens are kept when a stop string ended it."""
    stream = TextStream(decode, stop, skip_special)
    text, kept = "", 0
    for part in pushes(ids, sizes):
        pushed = stream.push(part)
        text += pushed.text
        if pushed.stopped_at is not None:
            return text + stream.finish(), kept + pushed.stopped_at
        kept += len(part)
    return text + stream.finish(), None


def first_stop(text: str, stops: Sequence[str]) -> str | None:
    """The text before the stop string completed first, found by trying every end."""
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return text[: end - max(map(len, completed))]
    return None


@settings(max_examples=examples(5000))
@given(token_runs, splits, st.booleans())
def test_any_split_gives_the_whole_decoding(ids: list[int], sizes: list[int], skip_special: bool) -> None:
    assert run(ids, sizes, skip_special=skip_special) == (decode(ids, skip_special), None)


@settings(max_examples=examples(5000))
@given(split_characters)
def test_an_unfinished_character_is_never_told(ids: list[int]) -> None:
    whole = decode(ids, True)
    stream, told = TextStream(decode), ""
    for token_id in ids:
        told += stream.push([token_id]).text
        assert whole.startswith(told)


@settings(max_examples=examples(5000))
@given(st.text("ab😀漢", max_size=30), splits, st.lists(st.text("ab😀漢", min_size=1, max_size=5), max_size=6))
def test_the_text_ends_before_the_first_completed_stop_string(text: str, sizes: list[int], stops: list[str]) -> None:
    ids = byte_ids(text.encode())
    told, kept = run(ids, sizes, stops)
    expected = first_stop(text, stops)
    if expected is None:
        assert (told, kept) == (text, None)
    else:
        assert told == expected
        assert kept is not None
        assert first_stop(decode(ids[:kept], True), stops) == expected
        assert first_stop(decode(ids[: kept - 1], True), stops) is None


@settings(max_examples=examples(5000))
@given(token_runs, st.lists(st.text(min_size=1, max_size=3), max_size=4), splits)
def test_the_split_changes_neither_the_text_nor_the_kept_tokens(
    ids: list[int], stops: list[str], sizes: list[int]
) -> None:
    assert run(ids, sizes, stops) == run(ids, [1], stops)


@pytest.mark.parametrize("size", range(1, 9))
def test_no_byte_of_a_stop_string_is_told(size: int) -> None:
    ids = encode("alpha beta gamma delta")
    told, kept = run(ids, [size], ["beta gamma"])
    assert told == "alpha "
    assert kept is not None
    assert decode(ids[:kept], True).startswith("alpha beta gamma")


def test_a_stop_string_begun_and_never_completed_is_flushed() -> None:
    assert run(encode("alpha beta gam"), [1], ["beta gamma"]) == ("alpha beta gam", None)


def test_the_tokens_after_the_stop_are_told_apart_in_one_push() -> None:
    stream = TextStream(decode, ["b"])
    assert stream.push(byte_ids(b"aabcc")) == Pushed("aa", stopped_at=3)


def test_of_stop_strings_completed_together_the_earliest_begun_wins() -> None:
    assert run(byte_ids(b"xabcd"), [1], ["c", "abc"])[0] == "x"


def test_a_begun_stop_string_does_not_hide_a_shorter_one_inside_it() -> None:
    assert run(byte_ids(b"xabcd"), [1], ["abcz", "bc"])[0] == "xa"


def test_a_stop_string_may_begin_inside_a_held_character() -> None:
    assert run(byte_ids("a😀b".encode()), [1], ["😀b"]) == ("a", 6)


def test_garbage_is_told_as_replacements_with_little_delay() -> None:
    stream = TextStream(decode)
    told = "".join(stream.push([token_id]).text for token_id in byte_ids(b"\xff" * 100))
    assert told == "\ufffd" * 97
    assert stream.finish() == "\ufffd" * 3


def test_special_tokens_between_the_bytes_of_a_character_do_not_break_it() -> None:
    first, *rest = byte_ids("😀".encode())
    assert run([first, *[IM_END] * 100, *rest], [1])[0] == "😀"


def test_the_window_stays_bounded_whatever_comes() -> None:
    longest = 0

    def watched(ids: Sequence[int], skip_special: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, skip_special)

    stream = TextStream(watched)
    for token_id in byte_ids(b"\xf0\x9f" * 2000) + [IM_END] * 2000 + encode("plain text " * 500):
        stream.push([token_id])
    assert longest <= WINDOW_TOKENS + CONTEXT_TOKENS


def byte_fallback(ids: Sequence[int], skip_special: bool) -> str:
    """Sentencepiece's habit: a run of byte tokens that is not valid as a whole is all replacements."""
    data = bytes(ids)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(data)


def test_byte_fallback_decoders_lose_nothing_of_valid_text() -> None:
    stream = TextStream(byte_fallback)
    told = "".join(stream.push([byte]).text for byte in "aé漢😀😀b".encode())
    assert told == "aé漢😀😀b"


def test_many_stop_strings_cost_no_more_than_one() -> None:
    ids = encode("the quick brown fox jumps over the lazy dog " * 20)

    def calls(stops: list[str]) -> int:
        stream, count = TextStream(decode, stops), 0

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        gc.disable()  # its callbacks would be counted too
        sys.setprofile(counted)
        for token_id in ids:
            stream.push([token_id])
        sys.setprofile(None)
        gc.enable()
        return count

    assert calls([f"lazy cat {n}" for n in range(10_000)]) == calls(["lazy cat"])
