"""The parts of a chat answer: the same at every split, nothing lost, no markup shown."""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.output import CallArguments, CallBegun, Content, OutputParser, Piece, Reasoning
from tests.soak import examples

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
WRITE_FILE = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
TOOLS: dict[str, Any] = {"get_weather": WEATHER, "write_file": WRITE_FILE}


def parse(pieces: Iterable[str], thinking: bool = False, tools: dict[str, Any] = TOOLS) -> list[Piece]:
    numbers = count()
    parser = OutputParser(thinking, tools, lambda: f"call_{next(numbers)}")
    said = [piece for text in pieces for piece in parser.push(text)]
    return said + parser.finish()


def summary(pieces: Sequence[Piece]) -> dict[str, Any]:
    """What a client puts together from the pieces."""
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        match piece:
            case CallBegun(index, call_id, name):
                assert index not in calls
                calls[index] = {"id": call_id, "name": name, "arguments": ""}
            case CallArguments(index, text):
                calls[index]["arguments"] += text
            case _:
                pass
    return {
        "reasoning": "".join(piece.text for piece in pieces if isinstance(piece, Reasoning)),
        "content": "".join(piece.text for piece in pieces if isinstance(piece, Content)),
        "calls": [(call["name"], json.loads(call["arguments"])) for call in calls.values()],
    }


def in_runs(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def call(name: str, **parameters: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


HELLO = call("write_file", path="src/h.py", content='print("Hello, World!")')
HELLO_ARGUMENTS = {"path": "src/h.py", "content": 'print("Hello, World!")'}


def test_qwen_xml_is_one_call_at_every_split() -> None:
    expected = {"reasoning": "", "content": "", "calls": [("write_file", HELLO_ARGUMENTS)]}
    for cut in range(len(HELLO) + 1):
        assert summary(parse([HELLO[:cut], HELLO[cut:]])) == expected
    for size in range(1, 9):
        assert summary(parse(in_runs(HELLO, size))) == expected


def test_a_call_names_itself_once_before_its_arguments() -> None:
    pieces = parse(in_runs(HELLO, 1))
    assert pieces[0] == CallBegun(0, "call_0", "write_file")
    assert {type(piece) for piece in pieces[1:]} == {CallArguments}


def test_markup_inside_a_value_is_kept_whole() -> None:
    value = "<cfg><parameter>a</parameter></cfg>"
    tools = {"put": {"type": "object", "properties": {"text": {"type": "string"}}}}
    said = summary(parse(in_runs(call("put", text=value), 3), tools=tools))
    assert said["calls"] == [("put", {"text": value})]


def test_an_end_tag_inside_a_value_does_not_end_the_call() -> None:
    value = "about </tool_call> and </function> and </parameter> tags"
    said = summary(parse(in_runs(call("write_file", content=value), 5)))
    assert said["calls"] == [("write_file", {"content": value})]


def test_hermes_json_is_a_call_too() -> None:
    text = 'Sure.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln </tool_call>"}}\n</tool_call>'
    for size in range(1, 9):
        said = summary(parse(in_runs(text, size)))
        assert said == {
            "reasoning": "",
            "content": "Sure.",
            "calls": [("get_weather", {"city": "Köln </tool_call>"})],
        }


def test_several_calls_are_numbered() -> None:
    pieces = parse([call("get_weather", city="Oslo") + "\n" + call("get_weather", city="Rome")])
    assert [piece.index for piece in pieces if isinstance(piece, CallBegun)] == [0, 1]
    assert summary(pieces)["content"] == ""


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", False, "why", "because"),
        ("why\n</think>\n\nbecause", True, "why", "because"),
        ("<think>\n\n</think>\n\n  indented", False, "", "  indented"),
        ("\n\n</think>\n\nplain", True, "", "plain"),
        ("</think>\n\nplain", False, "", "plain"),
        ("\n\n  indented", False, "", "  indented"),
        ("  plain <think>text</think>\n", False, "", "  plain <think>text</think>\n"),
        ("<think>never closed ", False, "never closed", ""),
        (f"<think>\nI could say\n{HELLO}", False, f"I could say\n{HELLO}", ""),
        (f"I could say\n{HELLO}\n</think>\n\nHm.", True, f"I could say\n{HELLO}", "Hm."),
        ("<thi", False, "", "<thi"),
        ("a < b", False, "", "a < b"),
    ],
)
def test_reasoning_is_told_apart(text: str, thinking: bool, reasoning: str, content: str) -> None:
    for size in range(1, 9):
        said = summary(parse(in_runs(text, size), thinking))
        assert said == {"reasoning": reasoning, "content": content, "calls": []}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=get_weather>\n",
        "<tool_call>\n<function=get_weather>\n<parameter=ci",
        '<tool_call>\n{"arguments": {"city": "Oslo"}}\n</tool_call>',
        "<tool_call>not a call</tool_call> and on",
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "x", "arguments": [}</tool_call>',
        "half a tag <tool_ca",
        "<tool_call>" * 50,
    ],
)
def test_what_is_no_call_is_given_back(text: str) -> None:
    for size in range(1, 9):
        assert summary(parse(in_runs(text, size))) == {"reasoning": "", "content": text, "calls": []}


def test_a_call_after_a_malformed_one_is_still_a_call() -> None:
    text = "<tool_call>oops " + call("get_weather", city="Oslo")
    said = summary(parse(in_runs(text, 4)))
    assert said["content"] == "<tool_call>oops"
    assert said["calls"] == [("get_weather", {"city": "Oslo"})]


def test_a_forgotten_end_tag_does_not_lose_the_call() -> None:
    said = summary(parse([call("get_weather", city="Oslo").removesuffix("\n</tool_call>")]))
    assert said["calls"] == [("get_weather", {"city": "Oslo"})]


def test_without_tools_the_markup_is_text() -> None:
    assert summary(parse(in_runs(HELLO, 2), tools={}))["content"] == HELLO


def uncalled(pieces: Iterable[str], thinking: bool = False) -> list[Piece]:
    """Of an answer in which nothing is to be called."""
    parser = OutputParser(thinking, {}, lambda: "never", uncalled=True)
    return [piece for text in pieces for piece in parser.push(text)] + parser.finish()


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (HELLO, ""),
        (HERMES, ""),
        (f"Let me see.\n{HELLO}", "Let me see."),
        (f"Let me see.\n{HELLO}\n\n{HERMES}\n\nIt rains.", "Let me see.\nIt rains."),
        (f"\n{HELLO}\nIt rains.", "It rains."),
        (f"a{HELLO}b", "a\nb"),
        (HELLO.removesuffix("\n</tool_call>"), ""),
        (f"<think>\n{HELLO}\n</think>\n\n{HELLO}", ""),
        ("<tool_call>not a call</tool_call> and on", "<tool_call>not a call</tool_call> and on"),
    ],
)
def test_a_call_that_nobody_wanted_is_left_out_with_its_markup(text: str, content: str) -> None:
    for size in (1, 2, 3, 5, 8, len(text)):
        said = summary(uncalled(in_runs(text, size)))
        assert (said["content"], said["calls"]) == (content, [])


def test_markup_inside_a_value_that_was_asked_for_is_part_of_the_value() -> None:
    inside = json.dumps({"how": "<tool_call><function=get_weather></function></tool_call>"})
    for text, expected in ((f"<think>\nHm.\n</think>\n\n{inside}", inside), (f"\n{inside}", inside), (HERMES, "")):
        for size in (1, 2, 7, len(text)):
            parser = OutputParser(False, TOOLS, lambda: "id", value=True)
            pieces = [piece for part in in_runs(text, size) for piece in parser.push(part)] + parser.finish()
            said = summary(pieces)
            assert (said["content"], bool(said["calls"])) == (expected, not expected)


FRAGMENTS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "\n\n", " ", "a", "é😀", "<", "</"),
        *("<function=get_weather>", "</function>", "<parameter=city>", "</parameter>", "Oslo", '{"name": "x"}'),
        *(call("get_weather", city="Oslo"), HELLO),
    ]
)


@settings(max_examples=examples(5000))
@given(st.lists(FRAGMENTS, max_size=12).map("".join), st.booleans(), st.data())
def test_no_split_changes_what_is_said(text: str, thinking: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert summary(parse(pieces, thinking)) == summary(parse([text], thinking))
    assert summary(parse(in_runs(text, 1), thinking)) == summary(parse([text], thinking))
    assert summary(uncalled(pieces, thinking)) == summary(uncalled([text], thinking))


def test_markup_without_end_is_read_in_little_time() -> None:
    begun = "<tool_call><function=write_file><parameter=content>"
    for value in (
        "</tool_call>" * 20_000,
        "</parameter>" * 20_000,
        "</function>\n" * 20_000,
        "</parameter>" + "\n" * 9_000,
    ):
        [call] = summary(parse(in_runs(begun + value, 1000)))["calls"]
        assert len(call[1]["content"]) >= len(value) - 40 or value.endswith("\n" * 9)
    for nested in ('<tool_call>{"arguments": "', "<tool_call>\n", "<tool_call><function=a>"):
        text = nested * 4_000
        assert summary(parse(in_runs(text, 1000)))["content"] == text
