"""Stop strings of a chat: they are those of the content that a client gets, and of nothing else."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.output import CallBegun, Content, OutputParser, Piece, Reasoning
from provider.generation import Reading
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.text import TextStream
from tests.soak import examples

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
PLAIN = Reading(thinking=False, calls=False)
THINKING = Reading(thinking=True, calls=False)
TOOLS = Reading(thinking=False, calls=True)
UNCALLED = Reading(thinking=False, calls=False, uncalled=True)
VALUE = Reading(thinking=True, calls=True, value=True)
CALL = "<tool_call>\n<function=f>\n<parameter=k>\na\n\nb\n</parameter>\n</function>\n</tool_call>"
HERMES = '<tool_call>\n{"name": "f", "arguments": {"k": "a"}}\n</tool_call>'

Told = list[tuple[str, str]]
"""Reasoning, stretches of content and the arguments of calls, in order."""


def parser_of(reading: Reading) -> OutputParser:
    tools = {"f": None} if reading.calls else {}
    return OutputParser(reading.thinking, tools, lambda: "id", uncalled=reading.uncalled, value=reading.value)


def joined(pieces: Sequence[Piece]) -> Told:
    """What a client puts together."""
    told: Told = []
    for piece in pieces:
        match piece:
            case Content(text):
                kind = "content"
            case Reasoning(text):
                kind = "reasoning"
            case CallBegun():
                told.append(("call", ""))
                continue
            case piece:
                kind, text = "call", piece.json
        if told and told[-1][0] == kind:
            told[-1] = (kind, told[-1][1] + text)
        else:
            told.append((kind, text))
    return told


def first_stop(content: str, stops: Sequence[str]) -> tuple[str, str] | None:
    """The content before the stop string that is completed first, and which that is."""
    for end in range(1, len(content) + 1):
        completed = [stop for stop in stops if content[:end].endswith(stop)]
        if completed:
            stop = max(completed, key=len)
            return content[: end - len(stop)], stop
    return None


def defined(text: str, stops: Sequence[str], reading: Reading) -> tuple[Told, str | None]:
    """What is to be told of an answer whose whole text is known."""
    parser = parser_of(reading)
    told = joined([*parser.push(text), *parser.finish()])
    for place, (kind, said) in enumerate(told):
        found = first_stop(said, stops) if kind == "content" else None
        if found is not None:
            before, stop = found
            return told[:place] + ([("content", before)] if before else []), stop
    return told, None


def played(
    ids: Sequence[int], sizes: Sequence[int], stops: Sequence[str], reading: Reading
) -> tuple[Told, str | None, int]:
    """What a client gets whose tokens come in such runs, the stop string, and how many tokens are kept."""
    stream, parser = TextStream(TOKENIZER.decode, stops, reading=reading), parser_of(reading)
    pieces: list[Piece] = []
    kept = turn = 0
    while kept < len(ids):
        run = ids[kept : kept + sizes[turn % len(sizes)]]
        pushed = stream.push(run)
        pieces += parser.push(pushed.text)
        kept, turn = kept + (pushed.stopped_at or len(run)), turn + 1
        if pushed.stopped_at is not None:
            break
    if stream.stopped_by is None:
        pieces += parser.push(stream.finish())
    pieces += parser.finish(stopped=stream.stopped_by is not None)
    return joined(pieces), stream.stopped_by, kept


def stripped(told: Told) -> Told:
    return [*told[:-1], (told[-1][0], told[-1][1].rstrip())] if told else []


WORDS = [
    *(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        CALL,
        HERMES,
        "<function=f>",
        "</function>",
        "<parameter=k>",
    ),
    *(
        '{"name": "f"',
        ', "arguments": {',
        "}",
        "}}",
        '"',
        "</tool",
        "</th",
        "\n",
        "\n\n",
        " ",
        "  ",
        "a",
        "b",
        "ab",
        "{",
    ),
    *("<", ">", "é", "😀", "f", "</parameter>"),
]
answers = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)
stop_strings = st.lists(
    st.lists(st.sampled_from([*WORDS[14:], "</think>", "tool"]), min_size=1, max_size=3).map("".join),
    min_size=1,
    max_size=4,
)
readings = st.builds(Reading, thinking=st.booleans(), calls=st.booleans(), uncalled=st.booleans(), value=st.booleans())


@settings(max_examples=examples(20000))
@given(answers, stop_strings, readings, st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_an_answer_ends_before_the_first_stop_string_of_its_content(
    text: str, stops: list[str], reading: Reading, sizes: list[int]
) -> None:
    ids = TOKENIZER.encode(text)
    told, stop, kept = played(ids, sizes, stops, reading)
    expected = defined(text, stops, reading)
    if reading.uncalled and stop is not None:
        # What stands for a call that was left out is said only when something follows it.
        assert (stripped(told), stop) == (stripped(expected[0]), expected[1])
    else:
        assert (told, stop) == expected
    assert (told, stop, kept) == played(ids, [1], stops, reading)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(
    ("reading", "text", "stops", "told", "stop"),
    [
        (PLAIN, "<think>\nso\n\n</think>\n\none\ntwo", ["\n"], [("reasoning", "so"), ("content", "one")], "\n"),
        (
            THINKING,
            "so\n\nand\n</think>\n\none",
            ["\n", "\n\n"],
            [("reasoning", "so\n\nand"), ("content", "one")],
            None,
        ),
        (THINKING, "see\n</think>\n\nhere", ["e"], [("reasoning", "see"), ("content", "h")], "e"),
        (THINKING, "so</think>\n\none", ["</think>", "k>\n"], [("reasoning", "so"), ("content", "one")], None),
        (THINKING, "so</think>\n\n  one", ["o"], [("reasoning", "so"), ("content", "  ")], "o"),
        (TOOLS, CALL, ["\n\n", "a", "<", "function"], [("call", '{"k": "a\\n\\nb"}')], None),
        (TOOLS, HERMES, ["\n", '"', "}"], [("call", '{"k": "a"}')], None),
        (TOOLS, f"See.\n\n{CALL}", ["\n\n", "\n"], [("content", "See."), ("call", '{"k": "a\\n\\nb"}')], None),
        (TOOLS, f"{HERMES}\nx\ny", ["\n"], [("call", '{"k": "a"}'), ("content", "x")], "\n"),
        (TOOLS, "one <tool_call> two\nthree", ["\n"], [("content", "one <tool_call> two")], "\n"),
        (TOOLS, "a < b", ["<"], [("content", "a ")], "<"),
        (TOOLS, f"a{HERMES}b", ["ab"], [("content", "a"), ("call", '{"k": "a"}'), ("content", "b")], None),
        (TOOLS, "one\n", ["\n"], [("content", "one")], "\n"),
        (
            VALUE,
            'so</think>\n\n{"a": "<tool_call>"}',
            ["<tool"],
            [("reasoning", "so"), ("content", '{"a": "')],
            "<tool",
        ),
        (PLAIN, CALL, ["\n"], [("content", "<tool_call>")], "\n"),
    ],
)
def test_stop_strings_are_those_of_the_content(
    reading: Reading, text: str, stops: list[str], told: list[tuple[str, str]], stop: str | None, size: int
) -> None:
    assert played(TOKENIZER.encode(text), [size], stops, reading)[:2] == (told, stop)


def test_what_comes_before_a_stop_string_is_told_at_once() -> None:
    stream = TextStream(TOKENIZER.decode, ["end", "gamma"], reading=TOOLS)
    parser = parser_of(TOOLS)
    pieces = parser.push(stream.push(TOKENIZER.encode("<think>so be")).text)
    pieces += parser.push(stream.push(TOKENIZER.encode("it</think>\n\nalpha b")).text)
    pieces += parser.push(stream.push(TOKENIZER.encode("eta g")).text)
    assert joined(pieces) == [("reasoning", "so beit"), ("content", "alpha beta")]
    for text in ("amble\n<tool_call>", "<function=f><parameter=k>\n", "a gam", "ma end"):
        pieces += parser.push(stream.push(TOKENIZER.encode(text)).text)
    assert joined(pieces)[1:] == [("content", "alpha beta gamble"), ("call", '{"k": "a gamma end')]


def test_a_limit_that_comes_with_what_may_be_markup_leaves_the_markup_out() -> None:
    for text, told, stop in (("one <tool", "one ", None), ("one\n<tool", "one", "\n")):
        stream = TextStream(TOKENIZER.decode, ["\n"], reading=TOOLS)
        parser = parser_of(TOOLS)
        pieces = parser.push(stream.push(TOKENIZER.encode(text)).text + stream.finish(cut=True))
        stopped = stream.stopped_by is not None
        pieces += parser.finish(cut=not stopped, stopped=stopped)
        assert (joined(pieces), stream.stopped_by) == ([("content", told)], stop)


def test_a_long_thought_and_a_long_call_cost_no_more_per_token_than_short_ones() -> None:
    """Counted in characters that are looked at again: none is held for long."""
    stream = TextStream(TOKENIZER.decode, ["\n\n", "never"], reading=Reading(thinking=True, calls=True))
    heard = told = 0
    for text in (
        ["so it may be\n\n"] * 500 + ["</think>\n\n<tool_call>\n<function=f>\n<parameter=k>\n"] + ["on\n\n"] * 500
    ):
        heard += len(text)
        told += len(stream.push(TOKENIZER.encode(text)).text)
        assert heard - told < 100
