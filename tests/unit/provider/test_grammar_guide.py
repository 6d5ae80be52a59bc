"""Which tokens may come next: position by position, with drafts before them, for several sequences at once."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.errors import GrammarError
from provider.grammar.compiler import Guides
from provider.grammar.guide import ANY, TOO_MUCH, Guide, allowed, masks
from provider.grammar.json_schema import STYLE
from provider.grammar.rules import grammar_of
from tests.fixtures.grammars import END, GUIDES, TOKENIZER, VOCAB_SIZE, guide_of
from tests.soak import examples

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
    "x-guidance": STYLE,
}
VALUE = grammar_of("start: @value", {"value": SCHEMA})
NUMBER = grammar_of("start: /[0-9]+/", {})
CONTROL = grammar_of("start: @value", {"value": {"enum": ["a<|im_end|>b", "a<|im_end|>c<|im_start|>"]}})
GRAMMARS = (VALUE, NUMBER, CONTROL, grammar_of('start: /(.|\\n)*?<\\/think>/ "x"', {}))
BOMB = grammar_of("start: @value", {"value": {"type": "string", "pattern": "^(a?){1000}a{1000}$"}})


def walk(grammar: str, random: Random, steps: int) -> list[int]:
    """A beginning of a text of this grammar."""
    guide, said = GUIDES.guide(grammar), list[int]()
    for _ in range(steps):
        token = random.choice(allowed(guide, VOCAB_SIZE) or [END])
        if token in TOKENIZER.eos_token_ids:
            break
        guide.note(token)
        said.append(token)
    return said


def bits(row: np.ndarray) -> set[int]:
    return {token for token in range(VOCAB_SIZE) if row[token // 32] >> token % 32 & 1}


def test_a_text_ends_only_where_it_is_whole() -> None:
    guide = guide_of(VALUE, TOKENIZER.encode('{"name": "a", "tags": [1'))
    assert not TOKENIZER.eos_token_ids & set(allowed(guide, VOCAB_SIZE) or [])
    for token in TOKENIZER.encode("]}"):
        guide.note(token)
    assert set(allowed(guide, VOCAB_SIZE) or []) == TOKENIZER.eos_token_ids


def test_no_control_token_and_no_token_without_text_is_ever_allowed() -> None:
    guides = Guides(TOKENIZER, VOCAB_SIZE + 70)
    free = guides.guide(grammar_of("start: /(.|\\n)+/", {}))
    open_to = set(allowed(free, VOCAB_SIZE + 70) or [])
    assert open_to < set(range(VOCAB_SIZE))
    assert not open_to & TOKENIZER.special_token_ids
    assert set(TOKENIZER.encode("<think></think><tool_call>")) <= open_to


@settings(max_examples=examples(1000))
@given(seed=st.integers(0, 2**32), forbidden=st.booleans(), guided=st.integers(1, 4))
def test_each_position_allows_what_its_text_with_the_drafts_before_it_does(
    seed: int, forbidden: bool, guided: int
) -> None:
    random = Random(seed)
    asked: list[Guide | None] = []
    expected: list[set[int] | None] = []
    for _ in range(guided):
        grammar = random.choice(GRAMMARS)
        text = walk(grammar, random, random.randint(0, 30))
        said = random.randint(0, len(text))
        guide, drafts = guide_of(grammar, text[:said]), text[said : said + 3]
        if forbidden and drafts:
            drafts[random.randrange(len(drafts))] = TOKENIZER.encode("ä")[0]
        before = allowed(guide, VOCAB_SIZE)
        for ahead in range(len(drafts) + 1):
            asked.append(guide.after(drafts[:ahead]))
            alone = guide_of(grammar, [*text[:said], *drafts[:ahead]])
            expected.append(None if alone.failure else set(allowed(alone, VOCAB_SIZE) or []))
        assert allowed(guide, VOCAB_SIZE) == before
        asked.append(None)
        expected.append(None)
    rows = masks(asked, VOCAB_SIZE)
    for row, want in zip(rows, expected, strict=True):
        assert (row == ANY).all() if want is None else bits(row) == want


def test_what_is_drawn_behind_the_end_is_nobodys_text() -> None:
    guide = guide_of(NUMBER, TOKENIZER.encode("12"))
    guide.note(END)
    guide.note(TOKENIZER.encode("x")[0])
    assert guide.failure is None
    assert (masks([guide], VOCAB_SIZE) == ANY).all()


def test_a_token_that_does_not_follow_fails_its_own_sequence_alone() -> None:
    broken, other = guide_of(NUMBER, TOKENIZER.encode("x")), guide_of(NUMBER, TOKENIZER.encode("1"))
    assert broken.failure is not None
    rows = masks([broken, other], VOCAB_SIZE)
    assert (rows[0] == ANY).all()
    assert END in bits(rows[1])


def test_a_grammar_that_asks_too_much_of_a_step_fails_its_own_sequence_alone() -> None:
    hard, other = guide_of(BOMB), guide_of(VALUE)
    for _ in range(4):
        rows = masks([hard, other, other.after(TOKENIZER.encode("{"))], VOCAB_SIZE)
        if hard.failure is not None:
            break
        hard.note(TOKENIZER.encode('"')[0] if 0 in rows[0] else max(bits(rows[0])))
    assert hard.failure == TOO_MUCH
    assert other.failure is None
    assert bits(rows[1]) == set(allowed(guide_of(VALUE), VOCAB_SIZE) or [])


def test_a_grammar_that_is_none_is_refused() -> None:
    for grammar in ("nonsense", grammar_of("start: /(a/", {}), grammar_of("start: @s", {"s": {"$ref": "#"}})):
        with pytest.raises(GrammarError):
            GUIDES.guide(grammar)


def test_a_vocabulary_that_cannot_be_guided_fails_its_requests_and_not_its_model() -> None:
    class Wordless:
        eos_token_ids = frozenset({0})
        special_token_ids = frozenset[int]()

        def encode(self, text: str, special: bool = True) -> list[int]:
            return []

        def token_bytes(self, token_id: int) -> bytes:
            raise ValueError("no bytes")

    guides = Guides(Wordless(), 8)
    guides.begin().join()
    with pytest.raises(GrammarError, match="no bytes"):
        guides.guide(VALUE)
