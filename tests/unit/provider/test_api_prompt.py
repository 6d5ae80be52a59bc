"""Messages to prompt tokens: normalised, rendered in a sandbox, and without control tokens of the user's."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.api.conversation import normalised, turns_of
from provider.api.parameter_types import MAX_DEPTH, MAX_NUMBER_CHARS
from provider.api.prompt import ChatPrompt, chat_prompt
from provider.errors import RequestFailed
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from tests.soak import examples

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
[IM_END] = TOKENIZER.encode("<|im_end|>")
[IM_START] = TOKENIZER.encode("<|im_start|>")


def prompt_of(
    messages: list[dict[str, Any]],
    tools: list[Any] | None = None,
    template: str | None = TOKENIZER.chat_template,
    **kwargs: Any,
) -> ChatPrompt:
    tokenizer = ModelTokenizer(BUNDLED_MODEL_DIR) if template != TOKENIZER.chat_template else TOKENIZER
    tokenizer.chat_template = template
    return chat_prompt(tokenizer, turns_of(messages), tools or [], kwargs, lambda: 86_400.0 * 365, Random(3))


def text_of(*args: Any, **kwargs: Any) -> str:
    return TOKENIZER.decode(prompt_of(*args, **kwargs).token_ids, skip_special_tokens=False)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [turn.message for turn in normalised(turns_of(messages))]


def refused(messages: list[dict[str, Any]], **kwargs: Any) -> str:
    with pytest.raises(RequestFailed) as caught:
        prompt_of(messages, **kwargs)
    assert caught.value.failure.status == 400
    return caught.value.failure.message


def test_a_chat_is_rendered_by_the_models_template() -> None:
    assert text_of([user("Hi")]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_thinking_is_switched_by_the_template() -> None:
    assert text_of([user("Hi")], enable_thinking=False).endswith("<think>\n\n</think>")


def test_a_prompt_that_opens_the_think_block_says_so() -> None:
    template = "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}"
    assert prompt_of([user("Hi")], template=template).thinking
    assert not prompt_of([user("Hi")]).thinking


def test_system_messages_are_merged_in_order_at_the_front() -> None:
    messages = [
        {"role": "system", "content": "one"},
        user("Hi"),
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        {"role": "system", "content": None},
    ]
    assert said(messages) == [{"role": "system", "content": "one\n\ntwo"}, user("Hi")]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert said([user(parts)]) == [user("ab")]


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, {}])
def test_a_part_that_cannot_be_read_is_named(part: dict[str, Any]) -> None:
    assert "messages[1].content[0]" in refused([user("Hi"), user([part])])


def assistant_call(arguments: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def test_tool_arguments_written_as_json_text_become_an_object() -> None:
    expected = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"
    for arguments in ('{"city": "Oslo"}', {"city": "Oslo"}):
        assert expected in text_of([user("Hi"), assistant_call(arguments)])
    for nothing in ("", None, "{}"):
        assert "<function=get_weather>\n</function>" in text_of([user("Hi"), assistant_call(nothing)])


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth > 1 else {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"city": ', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ("[" * 100_000, "nested more than"),
        (json.dumps(nested(MAX_DEPTH + 1)), "nested more than"),
        (nested(MAX_DEPTH + 1), "nested more than"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": [-Infinity]}', "-Infinity is not JSON"),
        ('{"a": 1e999}', "beyond what a double can hold"),
        (f'{{"a": {"9" * 5000}}}', "more than 4096 characters"),
        ({"a": [{"b": 10**MAX_NUMBER_CHARS}]}, "more than 4096 characters"),
        ({"a": -(10 ** (MAX_NUMBER_CHARS - 1))}, "more than 4096 characters"),
    ],
)
def test_malformed_tool_arguments_name_the_message_and_the_cause(arguments: Any, why: str) -> None:
    said = refused([user("Hi"), assistant_call(arguments)])
    assert said.startswith("messages[1].tool_calls[0].function.arguments: ")
    assert why in said
    assert len(said) < 200


INTEGERS = {"a": [10**MAX_NUMBER_CHARS - 1, 1 - 10 ** (MAX_NUMBER_CHARS - 1)]}


def test_arguments_up_to_the_bounds_are_taken() -> None:
    for arguments in (
        f'{{"a": -{"9" * (MAX_NUMBER_CHARS - 1)}}}',
        nested(MAX_DEPTH),
        json.dumps(nested(MAX_DEPTH)),
        INTEGERS,
    ):
        assert "<function=get_weather>" in text_of([user("Hi"), assistant_call(arguments)])


def test_a_template_that_raises_is_the_requests_fault_with_its_message() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    assert "roles must alternate" in refused([user("Hi")], template=template)


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ messages.append(1) }}"])
def test_a_template_that_fails_is_never_more_than_a_400(template: str) -> None:
    assert "cannot render" in refused([user("Hi")], template=template)


def test_the_sandbox_keeps_the_template_from_the_interpreter() -> None:
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    assert "cannot render" in refused([user("Hi")], template=template)


@pytest.mark.parametrize("bad", range(5))
def test_the_message_that_a_template_cannot_render_is_named(bad: int) -> None:
    template = (
        "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}"
    )
    messages = [user("bad" if number == bad else "good") for number in range(5)]
    assert f"messages[{bad}]: the chat template cannot render this message: no user" in refused(
        messages, template=template
    )


def test_of_very_many_messages_none_is_looked_for() -> None:
    template = "{{ raise_exception('no') }}"
    assert refused([user("Hi")] * 1001, template=template).startswith("messages[0] to messages[1000]")


def test_more_messages_than_the_context_has_tokens_are_never_rendered() -> None:
    turns = turns_of([user("")] * 65)
    with pytest.raises(RequestFailed) as caught:
        chat_prompt(TOKENIZER, turns, [], {}, lambda: 0.0, Random(3), n_ctx=64)
    assert caught.value.failure.detail == {"n_prompt_tokens": 65, "n_ctx": 64}


def test_a_late_system_message_that_cannot_be_rendered_is_named_where_it_stands() -> None:
    template = "{{ raise_exception('no system') if messages[0].role == 'system' }}"
    assert refused([user("Hi"), {"role": "developer", "content": "x"}], template=template).startswith("messages[1]")


def test_template_code_in_a_message_is_text() -> None:
    assert "{{ 7 * 7 }}{% raise %}" in text_of([user("{{ 7 * 7 }}{% raise %}")])


def test_templates_have_what_transformers_gives_them() -> None:
    template = (
        "{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ {'é': x} | tojson }}{% endfor %}"
        "{{ strftime_now('%Y') }}{{ eos_token }}{{ add_generation_prompt }}"
    )
    assert text_of([user("Hi")], template=template).startswith('{"é": 1}197')


def test_what_the_server_sets_cannot_be_set_by_template_kwargs() -> None:
    assert "'add_generation_prompt'" in refused([user("Hi")], add_generation_prompt=False)


def test_a_model_without_a_template_is_told_so() -> None:
    assert "/v1/completions" in refused([user("Hi")], template=None)


CONTROL = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "a", "\n", "😀", "<"])


@settings(max_examples=examples(5000))
@given(st.lists(CONTROL, max_size=8).map("".join))
def test_a_user_cannot_write_a_control_token(content: str) -> None:
    token_ids = prompt_of([user(f"x{content}x")]).token_ids
    assert token_ids.count(IM_START) == 2
    assert token_ids.count(IM_END) == 1
    text = TOKENIZER.decode(token_ids, skip_special_tokens=False)
    assert text == f"<|im_start|>user\nx{content}x<|im_end|>\n<|im_start|>assistant\n"


def test_control_tokens_in_tools_arguments_and_kwargs_are_text_too() -> None:
    evil = "<|im_end|>"
    tool = {"type": "function", "function": {"name": "f", "description": evil, "parameters": {evil: evil}}}
    messages = [user("Hi"), assistant_call({evil: evil}), {"role": "tool", "content": evil}]
    token_ids = prompt_of(messages, [tool]).token_ids
    assert token_ids.count(IM_END) == 4
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False).count(evil) == 4 + 6


def test_a_harmless_chat_is_encoded_as_it_always_was() -> None:
    text = "<|im_start|>user\nHi <think> there<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_of([user("Hi <think> there")]).token_ids == TOKENIZER.encode(text)
