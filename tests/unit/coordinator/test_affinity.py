from typing import Any

import pytest

from coordinator.affinity import OPENING, Affinities, conversation_of

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Who are you?"}


def chat(*turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [SYSTEM, FIRST, *turns], **more}


def test_every_turn_of_a_conversation_is_the_same_one() -> None:
    answer, second = {"role": "assistant", "content": "A model."}, {"role": "user", "content": "Which?"}
    begun = conversation_of(1, chat())
    assert begun is not None
    assert conversation_of(1, chat(answer, second, stream=True, temperature=0.5)) == begun
    parts = {"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}
    assert conversation_of(1, {"model": "m", "messages": [SYSTEM, parts]}) == begun


@pytest.mark.parametrize(
    "other",
    [
        (2, chat()),
        (1, chat(model="other")),
        (1, {"model": "m", "messages": [SYSTEM, {"role": "user", "content": "Who am I?"}]}),
        (1, {"model": "m", "messages": [FIRST]}),
        (1, {"model": "m", "prompt": "Who are you?"}),
    ],
)
def test_another_key_model_or_opening_is_another_conversation(other: tuple[int, dict[str, Any]]) -> None:
    assert conversation_of(*other) != conversation_of(1, chat())


def test_the_same_words_are_the_same_conversation_in_every_api() -> None:
    anthropic = {"model": "m", "system": "Be brief.", "messages": [FIRST]}
    response = {"model": "m", "instructions": "Be brief.", "input": "Who are you?"}
    again = {"model": "m", "instructions": "Be brief.", "input": [FIRST, {"role": "assistant", "content": "I?"}]}
    assert conversation_of(1, anthropic) == conversation_of(1, response) == conversation_of(1, again)


def test_only_the_beginning_of_a_text_counts() -> None:
    long = "x" * OPENING
    assert conversation_of(1, {"prompt": long + "a"}) == conversation_of(1, {"prompt": long + "b"})
    ids = list(range(OPENING))
    assert conversation_of(1, {"prompt": [*ids, 7]}) == conversation_of(1, {"prompt": [*ids, 8, 9]})
    assert conversation_of(1, {"prompt": [1, *ids]}) != conversation_of(1, {"prompt": [2, *ids]})


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"messages": []}, {"messages": {}}, {"input": [{}]}])
def test_without_a_text_there_is_no_conversation(body: dict[str, Any]) -> None:
    assert conversation_of(1, body) is None


def test_the_last_provider_of_each_conversation_is_known_and_the_oldest_forgotten() -> None:
    known = Affinities(kept=2)
    known.served(b"a", "p1")
    known.served(b"b", "p1")
    known.served(b"a", "p2")
    known.served(None, "p3")
    assert (known.last(b"a"), known.last(b"b"), known.last(None)) == ("p2", "p1", None)
    known.served(b"c", "p3")
    assert (known.last(b"a"), known.last(b"b"), known.last(b"c")) == ("p2", None, "p3")
