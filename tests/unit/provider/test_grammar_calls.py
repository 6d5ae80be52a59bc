"""What the rules of calls allow, the parser of answers reads: a model that says whatever it may, token by token."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.answer_form import Choice, Form, Offered, ToolChoice, grammar_of_answer
from provider.api.output import CallArguments, CallBegun, Content, OutputParser
from provider.api.prompt import ChatPrompt
from provider.grammar.checking import check
from provider.grammar.guide import allowed
from provider.grammar.local_names import by_pointers
from tests.fixtures.grammars import TOKENIZER, VOCAB_SIZE, guide_of
from tests.soak import examples

SCHEMAS: dict[str, dict[str, Any]] = {
    "search": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 8},
            "count": {"type": "integer", "minimum": 1, "maximum": 99},
            "exact": {"type": "boolean"},
            "where": {"$ref": "#/$defs/Where"},
            "kind": {"anyOf": [{"type": "string", "enum": ["new", "old"]}, {"type": "null"}]},
            "code": {"type": "string", "pattern": "^[a-z]{1,4}$"},
            "level": {"$ref": "#level"},
            "version": {"const": 1},
            "rate": {"type": "number"},
        },
        "required": ["query", "count", "kind", "level", "version"],
        "$defs": {
            "Level": {"$anchor": "level", "enum": [1, 2.5]},
            "Where": {
                "type": "object",
                "properties": {
                    "x": {"type": "number", "minimum": 0, "maximum": 9},
                    "name": {"type": "string", "maxLength": 4},
                },
                "required": ["name"],
            },
        },
    },
    "stop": {"type": "object", "properties": {}},
}
TEMPLATES = {"xml": "<tool_call> <function=", "json": "<tool_call>"}
STEPS = 300


def said(grammar: str, random: Random) -> str | None:
    """A text of this grammar; None where it was not at its end in time."""
    guide, tokens = guide_of(grammar), list[int]()
    for _ in range(STEPS):
        token = random.choice(allowed(guide, VOCAB_SIZE) or [0])
        if token in TOKENIZER.eos_token_ids:
            return TOKENIZER.decode(tokens)
        guide.note(token)
        assert guide.failure is None
        tokens.append(token)
    return None


@pytest.mark.parametrize("markup", TEMPLATES)
@settings(max_examples=examples(1500))
@given(seed=st.integers(0, 2**32))
def test_whatever_the_rules_allow_is_read_as_calls_that_fit_their_schemas(markup: str, seed: int) -> None:
    random = Random(seed)
    tools = [Offered(name, schema, False, "n", "p") for name, schema in SCHEMAS.items()]
    chosen = ToolChoice(Choice.REQUIRED, random.choice([None, "search"]), several=random.random() < 0.3)
    form = Form(tools=tools, choice=chosen)
    grammar = grammar_of_answer(form, ChatPrompt([1], thinking=False), TEMPLATES[markup], check)
    assert grammar is not None
    text = said(grammar, random)
    if text is None:
        return
    known = {name: by_pointers(schema) for name, schema in SCHEMAS.items()}
    parser = OutputParser(False, known, lambda: "id")
    pieces = [piece for char in text for piece in parser.push(char)] + parser.finish(cut=False)
    assert not [piece for piece in pieces if isinstance(piece, Content)]
    begun = [piece for piece in pieces if isinstance(piece, CallBegun)]
    assert begun
    for call in begun:
        told = "".join(one.json for one in pieces if isinstance(one, CallArguments) and one.index == call.index)
        jsonschema.validate(json.loads(told), SCHEMAS[call.name])
        assert chosen.name in (None, call.name)
