"""Which texts are answers: how they may think, and what they may say then, in the markup of either kind of model."""

from typing import Any

import pytest

from provider.errors import SchemaRefused
from provider.grammar.answer import Calls, Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.json_schema import usable
from provider.grammar.tool_rules import Markup, ToolSchema
from tests.fixtures.grammars import begins, takes

VALUE = usable({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "s", check)
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
        "tag": {"$ref": "#/$defs/Tag"},
        "note": {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "$defs": {"Tag": {"type": "string", "enum": ["x", "y"]}},
}
TEXTS = frozenset({"city", "unit", "tag", "note"})


def tool(name: str = "f", parameters: Any = PARAMETERS, texts: frozenset[str] = TEXTS) -> ToolSchema:
    schema = None if parameters is None else usable(parameters, "p", check)
    return ToolSchema(name, schema, texts, "n", "p")


def grammar(
    thinking: Thinking = Thinking.DONE,
    value: Any = None,
    tools: list[ToolSchema] | None = None,
    markup: Markup = Markup.XML,
    several: bool = True,
    talk: bool = False,
) -> str:
    calls = None if tools is None else Calls(tools, markup, several, talk)
    return answer_grammar(thinking, value, calls, "place", check)


def xml(*parameters: tuple[str, str], name: str = "f") -> str:
    said = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{said}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("thinking", "text", "whole"),
    [
        (Thinking.DONE, '{"a": 1}', True),
        (Thinking.DONE, '\n\n{"a":1}', True),
        (Thinking.DONE, '\n\n\n{"a": 1}', False),
        (Thinking.DONE, '{"a":  1}', False),
        (Thinking.DONE, '{"a": 1}\n', False),
        (Thinking.DONE, '{"a": 1', False),
        (Thinking.DONE, 'Sure! {"a": 1}', False),
        (Thinking.DONE, '<think>\n</think>{"a": 1}', False),
        (Thinking.BEGUN, '{"a": 1}', False),
        (Thinking.BEGUN, 'I wonder. {"a": 2}\n</think>\n\n{"a": 1}', True),
        (Thinking.BEGUN, '</think>{"a": 1}', True),
        (Thinking.BEGUN, "I wonder.", False),
        (Thinking.BEGUN, 'ä </thin</think>\n{"a": 1}', True),
        (Thinking.OFFERED, '{"a": 1}', True),
        (Thinking.OFFERED, '<think>\nI wonder.\n</think>\n\n{"a": 1}', True),
        (Thinking.OFFERED, '\n<think></think>{"a": 1}', True),
        (Thinking.OFFERED, "<think>\nI wonder.", False),
        (Thinking.OFFERED, 'I wonder.</think>{"a": 1}', False),
    ],
)
def test_a_value_follows_the_thinking_and_nothing_else(thinking: Thinking, text: str, whole: bool) -> None:
    assert takes(grammar(thinking, VALUE), text) == whole


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (xml(("city", "Oslo"), ("days", "3")), True),
        (xml(("city", "Oslo"), ("days", "3"), ("unit", "C"), ("tags", '["x", "y"]'), ("tag", "y")), True),
        (xml(("city", "Oslo"), ("days", "3"), ("note", "abc")), True),
        (xml(("city", "Oslo"), ("days", "3"), ("note", "null")), True),
        (xml(("city", "<b>\n<p>")), False),
        (xml(("city", "a<b>\n"), ("days", "3")), True),
        (xml(("city", "a"), ("days", "3")), False),
        (xml(("city", "Reykjavik"), ("days", "3")), False),
        (xml(("city", "Oslo")), False),
        (xml(("days", "3"), ("city", "Oslo")), False),
        (xml(("city", "Oslo"), ("days", "12")), False),
        (xml(("city", "Oslo"), ("days", "three")), False),
        (xml(("city", "Oslo"), ("days", "3"), ("unit", "K")), False),
        (xml(("city", "Oslo"), ("days", "3"), ("note", "A1")), False),
        (xml(("city", "Oslo"), ("days", "3"), ("other", "1")), False),
        (xml(("city", "Oslo"), ("days", "3"), name="g"), False),
        ("Let me see.", False),
        (xml(("city", "Oslo"), ("days", "3")) + "\n" + xml(("city", "Rome"), ("days", "1")), True),
        (xml(("city", "Oslo"), ("days", "3")) + " Done.", False),
    ],
)
def test_a_call_in_xml_has_the_parameters_of_its_schema(text: str, whole: bool) -> None:
    assert takes(grammar(tools=[tool()]), text) == whole


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo", "days": 3, "tag": "x"}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo", "days": 3, "z": 1}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', False),
    ],
)
def test_a_call_in_json_has_the_arguments_of_its_schema(text: str, whole: bool) -> None:
    assert takes(grammar(tools=[tool()], markup=Markup.JSON), text) == whole


@pytest.mark.parametrize("markup", Markup)
@pytest.mark.parametrize("shared", [{}, {"$defs": {"N": {"type": "integer"}}}])
def test_a_reference_of_a_parameter_leads_where_it_leads_in_the_tools_schema(
    markup: Markup, shared: dict[str, Any]
) -> None:
    number = {"$ref": "#/$defs/N"} if shared else {"type": "integer"}
    properties = {"n": number, "kids": {"type": "array", "items": {"$ref": "#"}}, "more": {"$ref": "#/properties/n"}}
    schema = {"type": "object", "properties": properties, "required": ["n"], **shared}
    held = grammar(tools=[tool(parameters=schema, texts=frozenset())], markup=markup)

    def said(kids: str, more: str) -> str:
        if markup is Markup.XML:
            return xml(("n", "1"), ("kids", kids), ("more", more))
        inner = f'"n": 1, "kids": {kids}, "more": {more}'
        return f'<tool_call>\n{{"name": "f", "arguments": {{{inner}}}}}\n</tool_call>'

    assert takes(held, said('[{"n": 2, "kids": [{"n": 3}]}]', "4"))
    for kids, more in (("[[]]", "4"), ("[{}]", "4"), ('[{"n": 2}]', '"x"')):
        assert not takes(held, said(kids, more))


def test_one_call_is_all_where_no_more_are_wanted() -> None:
    once = xml(("city", "Oslo"), ("days", "3"))
    only = grammar(tools=[tool()], several=False)
    assert takes(only, once)
    assert not begins(only, once + "\n")


def test_words_may_come_before_a_call_but_not_behind_it() -> None:
    once, free = xml(("city", "Oslo"), ("days", "3")), grammar(tools=[tool()], several=False, talk=True)
    for text in ("", "Hello.", "a < b </tool_call>", "Let me see.\n" + once, once):
        assert takes(free, text), text
    for text in (once + "Done.", "See: <tool_call>\nHm", "See: " + xml(("city", "Oslo"))):
        assert not takes(free, text), text


def test_a_value_or_a_call_where_both_are_asked_for() -> None:
    either = grammar(Thinking.OFFERED, VALUE, [tool()])
    for text in ('{"a": 1}', xml(("city", "Oslo"), ("days", "3")), '<think>Hm.</think>\n\n{"a": 1}'):
        assert takes(either, text), text
    assert not begins(either, "Hello")


@pytest.mark.parametrize("markup", Markup)
def test_a_tool_of_any_schema_takes_anything(markup: Markup) -> None:
    free = grammar(tools=[tool(parameters=None)], markup=markup)
    body = '{"name": "f", "arguments": {"z": [1]}}\n' if markup is Markup.JSON else "<function=f>\n<parameter=z>\n1\n"
    end = "" if markup is Markup.JSON else "</parameter>\n</function>\n"
    assert takes(free, f"<tool_call>\n{body}{end}</tool_call>")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("^[a-z]+$", ["abc"], ["x1", "A", "1abc"]),
        (r"\d{3}", ["123", "x123y"], ["12"]),
        ("^(ab|b)$", ["ab", "b"], ["a", "abb"]),
        (r"[^$]/x\/y", ["a/x/y"], ["$/x/y"]),
        (r"^a\$", ["a$b"], ["ba$"]),
        (r"c\$$", ["abc$"], ["abc$d"]),
    ],
)
def test_a_pattern_of_a_text_holds_as_json_schema_has_it(pattern: str, matching: list[str], others: list[str]) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}, "required": ["p"]}
    held = grammar(tools=[tool(parameters=schema, texts=frozenset({"p"}))])
    assert [text for text in matching if not takes(held, xml(("p", text)))] == []
    assert [text for text in others if takes(held, xml(("p", text)))] == []


@pytest.mark.parametrize(
    ("parameters", "texts", "place"),
    [
        ({"type": "object", "anyOf": [{"required": []}]}, "", "p.anyOf"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "", "p.required"),
        ({"type": "object", "properties": {"a>b": {}}}, "", "p.properties"),
        ({"type": "object", "properties": {"a": {"enum": ["x", 1]}}}, "a", "p.properties.a.enum"),
        ({"type": "object", "properties": {"a": {"const": 1}}}, "a", "p.properties.a.const"),
        ({"type": "object", "properties": {"a": {"enum": ["</parameter>"]}}}, "a", "p.properties.a.enum"),
        ({"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}}, "a", "p.properties.a"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a|b$"}}},
            "a",
            "p.properties.a.pattern",
        ),
    ],
)
def test_what_xml_cannot_say_is_refused_by_its_place(parameters: Any, texts: str, place: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        grammar(tools=[tool(parameters=parameters, texts=frozenset(texts))])
    assert caught.value.place == place


def schema_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize("texts", ["", "b"])
def test_a_parameter_that_nothing_satisfies_is_left_out(texts: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"const": 1}, "b": {"not": {}}}, "required": ["a"]}
    held = grammar(tools=[tool(parameters=parameters, texts=frozenset(texts))])
    assert takes(held, xml(("a", "1")))
    assert not takes(held, xml(("a", "1"), ("b", "1")))


@pytest.mark.parametrize("several", [True, False])
def test_what_is_too_much_for_the_rules_of_calls_is_refused_by_its_place(several: bool) -> None:
    long = schema_of(a={"type": "string"}, b={"type": "string", "minLength": 10**6})
    tools = [tool(), ToolSchema("g", usable(long, "q", check), frozenset("ab"), "n", "q")]
    with pytest.raises(SchemaRefused, match="more work to compile") as caught:
        grammar(tools=tools if several else tools[1:])
    assert caught.value.place == "q.properties.b"


def test_a_function_whose_name_would_be_markup_is_refused_by_its_place() -> None:
    with pytest.raises(SchemaRefused) as caught:
        grammar(tools=[tool(name="f>")])
    assert caught.value.place == "n"
