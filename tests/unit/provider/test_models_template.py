"""The bundled model's chat template, rendered as Hugging Face renders templates, byte for byte."""

import json
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from provider.models.bundled import BUNDLED_MODEL_DIR

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TRAINED_TOOLS = (
    "# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
    '{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", '
    '"properties": {"city": {"type": "string"}}, "required": ["city"]}}}\n</tools>'
)
ASK = {"role": "user", "content": "ask"}


def render(messages: list[dict[str, Any]], **values: Any) -> str:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    template = environment.from_string((BUNDLED_MODEL_DIR / "chat_template.jinja").read_text())
    return template.render(messages=messages, **{"add_generation_prompt": True, **values})


def call(arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant_turn(rendered: str) -> str:
    """The last assistant turn that is closed."""
    return rendered.split("<|im_start|>assistant\n")[-1].split("<|im_end|>")[0]


def test_a_question_is_one_turn_and_the_header_of_the_answer() -> None:
    assert render([ASK]) == "<|im_start|>user\nask<|im_end|>\n<|im_start|>assistant\n"


def test_no_header_follows_without_a_generation_prompt() -> None:
    assert render([ASK], add_generation_prompt=False) == "<|im_start|>user\nask<|im_end|>\n"


def test_the_weather_tool_renders_as_it_was_trained() -> None:
    assert render([ASK], tools=[WEATHER]) == (
        f"<|im_start|>system\n{TRAINED_TOOLS}<|im_end|>\n<|im_start|>user\nask<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_text_follows_the_tools() -> None:
    rendered = render([{"role": "system", "content": " Be brief. "}, ASK], tools=[WEATHER])

    assert rendered.startswith(f"<|im_start|>system\n{TRAINED_TOOLS}\n\nBe brief.<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_text_alone_is_a_system_turn(role: str) -> None:
    rendered = render([{"role": role, "content": "Be brief."}, ASK])

    assert rendered.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nask")


@pytest.mark.parametrize(
    ("switch", "tail"),
    [({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, "<think>\n\n</think>")],
)
def test_the_thinking_switch_closes_the_block_in_advance(switch: dict[str, bool], tail: str) -> None:
    assert render([ASK], **switch).endswith("<|im_start|>assistant\n" + tail)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (["a"], "a"),
        ([], ""),
        (None, ""),
    ],
)
def test_content_may_be_parts_or_null(content: Any, text: str) -> None:
    rendered = render([{"role": "user", "content": content}])

    assert rendered.startswith(f"<|im_start|>user\n{text}<|im_end|>")


def test_a_message_without_content_renders() -> None:
    assert assistant_turn(render([ASK, {"role": "assistant"}, ASK], add_generation_prompt=False)) == ""


@pytest.mark.parametrize("content", [[{"type": "image_url", "image_url": {"url": "x"}}], 5, {"a": 1}])
def test_content_that_is_not_text_is_refused(content: Any) -> None:
    with pytest.raises(TemplateError, match=r"reads text only|must be a string"):
        render([{"role": "user", "content": content}])


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(TemplateError, match="Unknown message role: robot"):
        render([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": "yes", "reasoning_content": "old thoughts"},
        {"role": "assistant", "content": "<think>\nold thoughts\n</think>\n\nyes"},
    ],
)
def test_reasoning_of_an_old_turn_is_dropped(answer: dict[str, str]) -> None:
    rendered = render([ASK, answer, ASK])

    assert "<|im_start|>assistant\nyes<|im_end|>\n" in rendered
    assert "old thoughts" not in rendered


def test_reasoning_since_the_last_question_is_kept() -> None:
    answer = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call({})]}
    rendered = render([ASK, ASK, answer, {"role": "tool", "content": "r"}])

    assert (
        "assistant\n<think>\nhm\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>" in rendered
    )


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ({"city": "Paris"}, "<parameter=city>\nParis\n</parameter>\n"),
        ({"n": 1, "ok": True, "x": None}, "<parameter=n>\n1\n</parameter>\n<parameter=ok>\ntrue\n</parameter>\n"
         "<parameter=x>\nnull\n</parameter>\n"),
        ({"o": {"a": ["ü"]}}, '<parameter=o>\n{"a": ["ü"]}\n</parameter>\n'),
        ("{broken", "{broken\n"),
        ("", ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_tool_call_of_the_history_renders_in_qwens_xml(arguments: Any, body: str) -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    rendered = render([ASK, answer, ASK], add_generation_prompt=False)

    assert assistant_turn(rendered) == f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"


def test_text_and_several_calls_are_kept_apart() -> None:
    answer = {"role": "assistant", "content": "Let me see.", "tool_calls": [call({}), call({}, "g")]}
    rendered = render([ASK, answer, ASK], add_generation_prompt=False)

    assert assistant_turn(rendered) == (
        "Let me see.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>"
    )


def test_tool_results_share_one_user_turn() -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [call({}), call({}, "g")]}
    results = [{"role": "tool", "tool_call_id": "call_1", "content": text} for text in ("r1", "r2")]

    assert (
        "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n"
    ) in render([ASK, answer, *results])
