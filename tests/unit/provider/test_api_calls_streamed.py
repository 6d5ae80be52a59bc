"""Tool calls are told while they are written, in either form, and the same at every split."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provider.api.conversation import arguments_of
from provider.api.output import CallArguments, CallBegun, Content, OutputParser, Piece
from tests.soak import examples
from tests.unit.provider.test_api_output import HELLO, call, in_runs, parse, summary

TOOLS: dict[str, Any] = {
    "write_file": {
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}}
    },
    "note": {"properties": {"text": {"type": ["string", "null"]}, "size": {"type": "number"}}},
}
HERMES = '<tool_call>\n{"name": "write_file", "arguments": {"path": "src/h.py", "content": "one two"}}\n</tool_call>'


def told_by(text: str) -> list[Piece]:
    """What has been told once `text` is there, and no more is."""
    return OutputParser(False, TOOLS, lambda: "id").push(text)


def arguments_by(text: str) -> str:
    return "".join(piece.json for piece in told_by(text) if isinstance(piece, CallArguments))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("<tool_call>\n<function=write_file>\n<parameter=path", None),
        ("<tool_call>\n<function=write_file>\n<parameter=path>", '{"path": "'),
        ("<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/h", '{"path": "src/h'),
        ("<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/h\n", '{"path": "src/h'),
        ("<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/h\n</para", '{"path": "src/h'),
        ('<tool_call>\n<function=write_file>\n<parameter=path>\na "b"\n\\', '{"path": "a \\"b\\"\\n\\\\'),
        ("<tool_call>\n<function=write_file>\n<parameter=mode>\n64", '{"mode": '),
        ("<tool_call>\n<function=note>\n<parameter=text>\nnu", '{"text": '),
        ("<tool_call>\n<function=note>\n<parameter=text>\nnumb", '{"text": "numb'),
        ('<tool_call>\n{"name": "write_file"', None),
        ('<tool_call>\n{"name": "write_file", "arguments": {"path": "sr', '{"path": "sr'),
        ('<tool_call>\n{"name": "write_file", "arguments": {"path": "sr", "mode": 6', '{"path": "sr", "mode": '),
    ],
)
def test_arguments_leave_before_the_call_is_closed(written: str, told: str | None) -> None:
    pieces = told_by(written)
    assert not any(isinstance(piece, Content) for piece in pieces)
    assert [piece.name for piece in pieces if isinstance(piece, CallBegun)] == (
        [] if told is None else [pieces[0].name]
    )  # type: ignore[union-attr]
    assert arguments_by(written) == (told or "")


@pytest.mark.parametrize("text", [HELLO, HERMES])
def test_what_is_told_grows_by_every_token_of_a_string(text: str) -> None:
    """No text of a value waits for more than its own end tag may take."""
    lag = len("\n</parameter>")
    start, end = text.index("src"), text.index("src") + len("src/h.py")
    for at in range(start, end):
        assert len(arguments_by(text[: at + 1])) >= len(arguments_by(text[:start])) + (at - start) - lag + 1


@pytest.mark.parametrize("text", [HELLO, HERMES])
def test_a_call_cut_anywhere_begins_like_the_whole_and_shows_no_markup(text: str) -> None:
    [(name, whole)] = summary(parse([text], tools=TOOLS))["calls"]
    for cut in range(len(text)):
        parser = OutputParser(False, TOOLS, lambda: "id")
        pieces = parser.push(text[:cut]) + parser.finish(cut=True)
        said = "".join(piece.json for piece in pieces if isinstance(piece, CallArguments))
        assert json.dumps(whole).startswith(said)
        assert not any(isinstance(piece, Content) for piece in pieces)
        assert [piece.name for piece in pieces if isinstance(piece, CallBegun)] in ([], [name])


@pytest.mark.parametrize("text", [HELLO, HERMES])
def test_a_call_that_the_model_ends_too_early_has_whole_arguments(text: str) -> None:
    for end in range(len(text)):
        said = summary(parse([text[:end]], tools=TOOLS))
        assert said["calls"] or text.startswith(said["content"])
        assert set(dict(said["calls"]).get("write_file", {})) <= {"path", "content"}


@pytest.mark.parametrize(
    "missing",
    ["</parameter>\n</function>\n</tool_call>", "</function>\n</tool_call>", "</tool_call>", "\n</tool_call>"],
)
def test_end_tags_that_are_forgotten_at_the_end_are_added(missing: str) -> None:
    whole = summary(parse([HELLO], tools=TOOLS))
    assert summary(parse(in_runs(HELLO.removesuffix(missing), 3), tools=TOOLS)) == whole


def test_an_end_tag_of_a_parameter_may_be_forgotten() -> None:
    text = HELLO.replace("\n</parameter>\n</function>", "\n</function>")
    assert summary(parse(in_runs(text, 2), tools=TOOLS)) == summary(parse([HELLO], tools=TOOLS))


def test_text_goes_on_after_a_call() -> None:
    for text in (HELLO, HERMES):
        said = summary(parse(in_runs(f"{text}\nDone.", 4), tools=TOOLS))
        assert (len(said["calls"]), said["content"]) == (1, "Done.")


def test_two_calls_in_one_pair_of_tags_are_two() -> None:
    inner = call("write_file", path="a").removesuffix("\n</tool_call>")
    two = inner + call("write_file", path="b").removeprefix("<tool_call>")
    assert [args for _, args in summary(parse(in_runs(two, 3)))["calls"]] == [{"path": "a"}, {"path": "b"}]
    two = '<tool_call>{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}</tool_call>'
    assert summary(parse(in_runs(two, 3)))["calls"] == [("f", {"a": 1}), ("g", {})]


def test_what_makes_no_sense_inside_a_call_is_dropped() -> None:
    text = call("write_file", path="a").replace("</function>", "<parameter=x\n oops</function>") + " and on"
    assert summary(parse(in_runs(text, 3)))["calls"]
    assert "oops" not in summary(parse(in_runs(text, 3)))["content"]


STRINGS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)
TRICKY = st.sampled_from(
    [
        "</parameter>",
        "</function>",
        "<parameter=",
        "</tool_call>",
        "<tool_call>",
        "\n",
        '"',
        "\\",
        "null",
        "{",
        "}",
        ",",
        "é😀",
    ]
)
VALUES = st.lists(STRINGS | TRICKY, max_size=6).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(VALUES, inner, max_size=3),
    max_leaves=8,
)


def split(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted(cut % (len(text) + 1) for cut in cuts)
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@settings(max_examples=examples(5000))
@given(st.dictionaries(VALUES, JSON, max_size=4), CUTS)
def test_json_arguments_are_what_was_written(arguments: dict[str, Any], cuts: list[int]) -> None:
    written = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    text = f"<tool_call>\n{written}\n</tool_call>"
    for pieces in (split(text, cuts), in_runs(text, 1)):
        assert summary(parse(pieces)) == {"reasoning": "", "content": "", "calls": [("f", arguments)]}


@settings(max_examples=examples(5000))
@given(st.dictionaries(st.sampled_from(["a", "b", "c d"]), VALUES, max_size=3), CUTS)
def test_strings_in_xml_are_what_was_written(arguments: dict[str, str], cuts: list[int]) -> None:
    """But for what the form cannot tell: a value that holds the end of itself."""
    if any(
        f"</parameter>{rest}" in "".join(value.split()) for value in arguments.values() for rest in ("<param", "</func")
    ):
        return
    if any("</function></tool_call>" in "".join(value.split()) for value in arguments.values()):
        return
    text = call("f", **arguments)
    tools = {"f": {"properties": {key: {"type": "string"} for key in arguments}}}
    for pieces in (split(text, cuts), in_runs(text, 1)):
        said = summary(parse(pieces, tools=tools))
        assert said == {"reasoning": "", "content": "", "calls": [("f", arguments)]}


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=note>", "</function>", "<parameter=text>", "<parameter=size>"),
        *(
            "</parameter>",
            "\n",
            " ",
            "null",
            "12",
            "Oslo",
            "{",
            "}",
            '"',
            ": ",
            ", ",
            '{"name": "note", "arguments": ',
            "[",
        ),
        *('{"text": "', '"}', "\\", "\\u00", "\\ud83d", "\\ude", "é😀", "True", HERMES, HELLO),
        *("NaN", "1e999", "9" * 4096, "[" * 130, "]" * 120),
    ]
)


@settings(max_examples=examples(10_000))
@given(
    st.lists(FRAGMENTS, max_size=14).map("".join),
    CUTS,
    st.booleans(),
    st.sampled_from(
        [
            "<tool_call>",
            "<tool_call>\n<function=note>\n<parameter=text>\n",
            '<tool_call>{"name": "note", "arguments": {',
            "",
        ]
    ),
)
@example('"\\ude<tool_call>', [], False, '<tool_call>{"name": "note", "arguments": {')
def test_no_split_changes_what_is_told(text: str, cuts: list[int], cut: bool, begun: str) -> None:
    text = begun + text

    def told(pieces: Sequence[str]) -> list[Any]:
        parser = OutputParser(False, TOOLS, lambda: "id")
        said = [piece for each in pieces for piece in parser.push(each)] + parser.finish(cut)
        joined: list[Any] = []
        for piece in said:
            if joined and type(piece) is type(joined[-1][0]) and not isinstance(piece, CallBegun):
                joined[-1].append(piece)
            else:
                joined.append([piece])
        return [
            (
                type(group[0]),
                "".join(getattr(one, "text", None) or getattr(one, "json", None) or one.name for one in group),
            )
            for group in joined
        ]

    whole = told([text])
    assert told(split(text, cuts)) == whole
    assert told(in_runs(text, 1)) == whole
    if not cut:
        for kind, said in whole:
            said.encode()
            if kind is CallArguments:
                arguments_of(said, "what is told is taken back")
