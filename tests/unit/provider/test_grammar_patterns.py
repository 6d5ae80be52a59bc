"""Patterns mean what ECMA-262 has them mean, or are refused by their place."""

import json
import re
import warnings
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.errors import SchemaRefused
from provider.grammar.answer import Calls, Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.json_schema import usable
from provider.grammar.tool_rules import Markup, ToolSchema
from tests.fixtures.grammars import takes
from tests.fixtures.languages import admits, matcher_of
from tests.soak import examples


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        (r"^\u0041\x42\cA\0$", ["AB\x01\0"], ["AB\x01", "AB"]),
        (r"^\uD83D\uDE00[\uD83D\uDE00-\uD83D\uDE02]$", ["😀😁"], ["😀", "😀😃"]),
        (r"^\u{1F600}$", ["😀"], ["u"]),
        (r"^[^]$", ["a", "\n", "é"], ["", "ab"]),
        (r"^.$", ["a", "é", "\x85"], ["\n", "\r", "\u2028", ""]),
        (r"^\d$", ["7"], ["\u0663", "a"]),
        (r"^\w$", ["a", "_"], ["é", "-"]),
        (r"^[^\w]$", ["é", "-"], ["a", "_"]),
        (r"^\s\S$", ["\ufeffx", "\u3000\x85", " a"], ["xx", "\x85x"]),
        (r"^[[:al]$", ["[", ":", "a"], ["b", "]"]),
        (r"^[a&&b~~-]$", ["a", "b", "&", "~", "-"], ["c", ""]),
        (r"^[\b\]]$", ["\b", "]"], ["b"]),
        (r"^[\d-z]$", ["5", "-", "z"], ["a"]),
        (r"^\<b\>\/\-\_{$", ["<b>/-_{"], ["b"]),
        (r"^(?<y>a)(?P<z>b)(?:c)(d)$", ["abcd"], ["abc"]),
        (r"^(?i:a)b$", ["ab", "Ab"], ["aB"]),
        (r"^\p{Lu}[\p{Ll}0]$", ["Éé", "A0"], ["ab"]),
        (r"^a+?b{2}c{0,1}$", ["abb", "aabbc"], ["ab"]),
        (r"b", ["abc", "b"], ["ac"]),
    ],
)
def test_a_pattern_fits_what_it_does_elsewhere(pattern: str, fitting: list[str], others: list[str]) -> None:
    parameters = {"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}, "required": ["p"]}
    held = usable(parameters, "s", check)
    matcher = matcher_of(held)
    tool = ToolSchema("f", held, frozenset("p"), "n", "p")
    raw = answer_grammar(Thinking.DONE, None, Calls([tool], Markup.XML, several=False, talk=False), "s", check)

    def fits(text: str) -> tuple[bool, bool]:
        call = f"<tool_call>\n<function=f>\n<parameter=p>\n{text}\n</parameter>\n</function>\n</tool_call>"
        return admits(matcher, json.dumps({"p": text}, ensure_ascii=False)), takes(raw, call)

    assert [text for text in fitting if fits(text) != (True, True)] == []
    assert [text for text in others if fits(text) != (False, False)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?=a)b", "looks ahead or behind"),
        (r"(?<!a)b", "looks ahead or behind"),
        (r"\bfoo\b", "edge of a word"),
        (r"(a)\1", "refers back"),
        (r"(?<y>a)\k<y>", "refers back"),
        (r"\Aa\z", "ECMA-262 does not know"),
        (r"\uD83D", "is no character"),
        (r"\u{110000}", "is no character"),
        (r"(?s)a", "not known here"),
        (r"(?>a)", "not known here"),
        (r"[]", "no characters"),
        (r"[a", "without its end"),
        ("a\\", "ends in a backslash"),
        (r"a{,3}", "write {0,3}"),
    ],
)
def test_a_pattern_that_cannot_be_held_to_is_refused_by_its_place(pattern: str, why: str) -> None:
    for place, schema in (
        ("s.pattern", {"type": "string", "pattern": pattern}),
        ("s.items.anyOf[0].pattern", {"type": "array", "items": {"anyOf": [{"pattern": pattern}]}}),
        (f"s.patternProperties.{pattern}", {"type": "object", "patternProperties": {pattern: {}}}),
    ):
        with pytest.raises(SchemaRefused, match=why) as caught:
            usable(schema, "s", check)
        assert caught.value.place == place


def test_a_pattern_of_names_fits_what_it_does_elsewhere() -> None:
    matcher = matcher_of(
        usable({"patternProperties": {r"^\d[[:]$": {"const": 1}}, "additionalProperties": False}, "s", check)
    )
    assert admits(matcher, '{"5:": 1}')
    assert not admits(matcher, '{"\u0663:": 1}')


CHARS = "a5_-[&\n "
ATOMS = [
    "a",
    "5",
    ".",
    r"\d",
    r"\W",
    r"[a\d]",
    r"[^a_-]",
    r"[!-5]",
    r"[[&]",
    r"[\w-]",
    r"[a&&5]",
    r"\-",
    r"\[",
    r"\x61",
]
PIECES = st.lists(st.sampled_from([*ATOMS, "(a|5)", "(?:-)?", "a*", "[^5]+", "_{1,2}"]), min_size=1, max_size=3)
TEXTS = ["".join(text) for length in range(4) for text in product(CHARS, repeat=length)]


@settings(max_examples=examples(2000, share=100))
@given(pieces=PIECES, begins=st.booleans(), ends=st.booleans())
def test_a_pattern_fits_what_it_does_for_another_engine(pieces: list[str], begins: bool, ends: bool) -> None:
    pattern = f"{'^' if begins else ''}{''.join(pieces)}"
    with warnings.catch_warnings(action="ignore"):  # Python warns of `[[`, which it may read in another way one day
        other = re.compile(pattern + (r"\Z" if ends else ""), re.ASCII)
    matcher = matcher_of(usable({"type": "string", "pattern": pattern + ("$" if ends else "")}, "s", check))
    for text in TEXTS:
        assert admits(matcher, json.dumps(text)) == bool(other.search(text)), text
