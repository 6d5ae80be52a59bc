from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.estimates import (
    ANSWER_TOKENS,
    LEARNED_FROM_BYTES,
    MODELS,
    Estimates,
    Ratio,
    Text,
    Tokens,
    most_tokens,
    prompts_of,
    tokens,
)

M = "demo"
LONG = "word " * 400


def estimate(body: dict[str, Any]) -> Tokens:
    return Estimates().tokens(M, prompts_of(body))


def says(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


@pytest.mark.parametrize(
    ("body", "likely", "least"),
    [
        ({}, 0, 0),
        ({"prompt": "x" * 60}, 15, 5),
        ({"prompt": [1, 2, 3]}, 3, 3),
        ({"prompt": [[1, 2], [3]]}, 3, 2),
        ({"prompt": ["x" * 60, "y" * 120]}, 45, 10),
        ({"prompt": ["x" * 60, 7]}, 16, 5),
        ({"prompt": None}, 0, 0),
        ({"prompt": []}, 0, 0),
        ({"prompt": {"odd": 1}}, 0, 0),
        (says("x" * 60), 15, 5),
        ({"messages": [*says("x" * 60)["messages"], *says("y" * 60)["messages"]]}, 30, 10),
        (says([{"type": "text", "text": "x" * 60}, {"type": "image_url", "image_url": {"url": "x" * 999}}]), 15, 5),
        ({"messages": [{"role": "assistant", "content": None}, 3.5, "hi"]}, 0, 0),
        (says("é" * 60), 30, 10),
        (says("\ud800" * 60), 15, 5),
        (says("<think>" + "x" * 600 + "</think>" + "y" * 60, "assistant"), 15, 5),
        (says("<think>" + "x" * 593 + "</think>" + "y" * 52), 165, 55),
        (
            {**says([{"type": "tool_result", "content": "x" * 60}]), "system": [{"type": "text", "text": "y" * 60}]},
            30,
            10,
        ),
        (says([{"type": "thinking", "thinking": "x" * 600}, {"type": "text", "text": "y" * 60}], "assistant"), 15, 5),
        ({"input": "x" * 60, "instructions": "y" * 60}, 30, 10),
        (
            {"input": [{"role": "user", "content": "x" * 60}, {"type": "function_call_output", "output": "y" * 60}]},
            30,
            10,
        ),
        ({"input": [{"type": "reasoning", "content": [{"text": "x" * 600}]}]}, 0, 0),
    ],
)
def test_the_tokens_of_any_json_are_estimated(body: dict[str, Any], likely: int, least: int) -> None:
    found = estimate(body)
    assert abs(found.likely - likely) <= 1
    assert found.least == least


@pytest.mark.parametrize("run", [" ", "\n", "\t", "-", "=", "#", "*"])
def test_a_long_run_of_one_character_is_no_proof_of_length(run: str) -> None:
    assert estimate({"prompt": run * 100_000}).least == 0
    assert estimate({"prompt": "x" * 120 + run * 100_000}).least == 10


def test_nesting_of_any_depth_is_read() -> None:
    nested: Any = "x" * 120
    for _ in range(5000):
        nested = [nested]
    assert estimate(says(nested)).least == 10


def test_the_ratio_of_a_model_is_learned_from_usage() -> None:
    learned = Estimates()
    prompts = prompts_of({"prompt": LONG})
    for _ in range(50):
        learned.learn(M, prompts, len(LONG) // 5)
    assert learned.tokens(M, prompts).likely == pytest.approx(len(LONG) / 5, rel=0.02)
    assert learned.tokens("other", prompts).likely == len(LONG) / 4
    for _ in range(400):
        learned.learn(M, prompts, len(LONG) // 2)
    assert learned.tokens(M, prompts).likely == pytest.approx(len(LONG) / 2, rel=0.02)


def test_a_text_with_long_tokens_lowers_the_bound_for_a_while() -> None:
    learned = Estimates()
    prompts = prompts_of({"prompt": LONG})
    before = learned.tokens(M, prompts).least
    learned.learn(M, prompts, len(LONG) // 20)
    assert learned.tokens(M, prompts).least == len(LONG) // 40
    for _ in range(400):
        learned.learn(M, prompts, len(LONG) // 4)
    assert learned.tokens(M, prompts).least == pytest.approx(before, abs=1)


@pytest.mark.parametrize("counted", [None, "7", -3, 0, 7.5, float("nan"), [], 10**400])
def test_a_count_that_is_none_teaches_nothing_that_harms(counted: object) -> None:
    learned = Estimates()
    prompts = prompts_of({"prompt": LONG})
    before = learned.tokens(M, prompts)
    for _ in range(100):
        learned.learn(M, prompts, counted)
    after = learned.tokens(M, prompts)
    assert after.least == before.least
    assert after.likely <= len(LONG)


@pytest.mark.parametrize("body", [{"prompt": "x" * (LEARNED_FROM_BYTES - 1)}, {"prompt": [LONG, [1, 2]]}, {}])
def test_what_says_little_of_a_text_teaches_nothing(body: dict[str, Any]) -> None:
    learned = Estimates()
    learned.learn(M, prompts_of(body), 30)
    assert learned.ratio(M) == Ratio()


def test_the_models_remembered_are_bounded() -> None:
    learned = Estimates()
    for number in range(MODELS + 50):
        learned.learn(f"m{number}", prompts_of({"prompt": LONG}), 500)
    assert learned.ratio("m0") == Ratio()
    assert learned.ratio(f"m{MODELS + 49}") != Ratio()


SEEN = st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 200_000)), max_size=30)


@given(SEEN, st.integers(0, 10**7))
def test_the_bound_is_never_above_the_estimate_nor_above_what_was_ever_seen(
    seen: list[tuple[int, int]], size: int
) -> None:
    ratio = Ratio()
    for bytes_seen, counted in seen:
        ratio = ratio.learned(bytes_seen, counted)
    found = tokens([Text(size, size, 0)], ratio)
    assert 0 <= found.least <= found.likely + 1
    assert found.least <= size / 12
    if seen:
        last_bytes, last_tokens = seen[-1]
        assert tokens([Text(last_bytes, last_bytes, 0)], ratio).least <= last_tokens


@given(st.text(max_size=300), st.text(max_size=300))
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    shorter, longer = estimate({"prompt": text}), estimate({"prompt": [text, more]})
    assert longer.likely >= shorter.likely
    assert longer.least >= shorter.least


def test_an_answer_is_as_long_as_answers_have_been_and_no_longer_than_allowed() -> None:
    known = Estimates()
    assert known.answer_tokens("m", None) == ANSWER_TOKENS
    assert known.answer_tokens("m", 10) == 10
    for _ in range(200):
        known.learn_answer("m", 40)
    assert known.answer_tokens("m", None) == 40
    assert known.answer_tokens("m", 4096) == 40
    assert known.answer_tokens("other", 4096) == ANSWER_TOKENS
    assert known.answer_tokens("m", 0) == 1


@pytest.mark.parametrize("counted", [None, -1, 0, 2**31, 10**400, "many", 3.5])
def test_a_strange_count_of_an_answer_teaches_nothing(counted: object) -> None:
    known = Estimates()
    known.learn_answer("m", counted)
    assert known.answer_tokens("m", None) == ANSWER_TOKENS


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_output_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 0}, None),
        ({"max_tokens": "7"}, None),
    ],
)
def test_what_a_body_allows_its_answer_is_read_from_every_api(body: dict[str, Any], most: int | None) -> None:
    assert most_tokens(body) == most
