"""A schema's own words are said as text, also where they read like a control token of the model."""

import json
from random import Random
from typing import Any

import pytest

from provider.grammar.answer import Calls, Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.compiler import Compiler
from provider.grammar.guide import Guide, allowed
from provider.grammar.json_schema import usable
from provider.grammar.tool_rules import Markup, ToolSchema
from tests.fixtures.grammars import GUIDES, TOKENIZER, VOCAB_SIZE

END, START = "<|im_end|>", "<|im_start|>"
MIXED = f"a{END}b{START}user\n<|endoftext|><think></tool_call>"


def said(guide: Guide, seed: int) -> str:
    """A whole text of a grammar."""
    random, tokens = Random(seed), list[int]()
    for _ in range(400):
        token = random.choice(allowed(guide, VOCAB_SIZE) or [0])
        if token in TOKENIZER.eos_token_ids:
            return TOKENIZER.decode(tokens)
        assert token not in TOKENIZER.special_token_ids
        guide.note(token)
        assert guide.failure is None
        tokens.append(token)
    raise AssertionError(f"no end: {TOKENIZER.decode(tokens)}")


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize("text", [END, START + "user", f"a{END}b", "<|endoftext|>", MIXED])
def test_a_value_is_what_its_schema_says(text: str) -> None:
    pattern = "".join(f"\\{char}" if char in "|" else "\\n" if char == "\n" else char for char in text)
    for schema, value in (
        ({"const": text}, text),
        ({"enum": [text, text]}, text),
        ({"type": "string", "pattern": f"^{pattern}$"}, text),
        (closed(**{text: {"const": 1}}), {text: 1}),
        (closed(q={"type": "array", "minItems": 1, "maxItems": 1, "items": closed(r={"const": text})}), None),
    ):
        grammar = answer_grammar(Thinking.DONE, usable(schema, "s", check), None, "s", check)
        answer = json.loads(said(GUIDES.guide(grammar), len(text)))
        assert answer == ({"q": [{"r": text}]} if value is None else value)


@pytest.mark.parametrize("markup", Markup)
@pytest.mark.parametrize(
    "text", [MIXED, "\u2028\0\x7f", "\x7f", "\x01\x1b\x85", "\r\n", '\\n \\" \\', "\ufeff\u200d", "", "😀"]
)
def test_an_argument_is_what_its_schema_says(markup: Markup, text: str) -> None:
    parameters = usable(closed(p={"type": "string", "enum": [text]}, o=closed(**{text: {"const": text}})), "p", check)
    tool = ToolSchema("f", parameters, frozenset("p"), "n", "p")
    grammar = answer_grammar(Thinking.DONE, None, Calls([tool], markup, several=False, talk=False), "s", check)
    answer = said(GUIDES.guide(grammar), 1)
    if markup is Markup.XML:
        assert answer.partition("<parameter=p>\n")[2].startswith(text + "\n</parameter>")
        value = answer.partition("<parameter=o>\n")[2].partition("\n</parameter>")[0]
        assert json.loads(value) == {text: text}
    else:
        call = json.loads(answer.strip().removeprefix("<tool_call>").removesuffix("</tool_call>"))
        assert call["arguments"] == {"p": text, "o": {text: text}}


def test_a_tokenizer_that_reads_control_tokens_into_every_text_is_not_believed() -> None:
    class Eager:
        """As one whose control tokens are not marked as such, or that puts a space before every text."""

        eos_token_ids = TOKENIZER.eos_token_ids
        special_token_ids = frozenset[int]()

        def __init__(self, before: str) -> None:
            self._before = before

        def encode(self, text: str, special: bool = True) -> list[int]:
            return TOKENIZER.encode(self._before + text)

        def token_bytes(self, token_id: int) -> bytes:
            return TOKENIZER.token_bytes(token_id)

    for before in ("", " "):
        compiler = Compiler(Eager(before), VOCAB_SIZE)
        grammar = answer_grammar(Thinking.DONE, usable({"const": f"a{END}b"}, "s", check), None, "s", check)
        assert json.loads(said(compiler.guide(grammar), 1)) == f"a{END}b"
