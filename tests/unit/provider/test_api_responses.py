"""OpenAI's responses: the same question as a chat, in items, and the answer told back in items."""

from random import Random
from typing import Any

import pytest

from provider.api.job import Job, Origin, chat_job
from provider.api.jobs import responses_job
from provider.api.wire import Failure
from provider.errors import RequestFailed
from provider.generation import GenerationRequest
from tests.fixtures.api_serving import TOKENIZER, DemoModel

BODY: dict[str, Any] = {"model": "darkbloom-demo", "input": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "get_weather", "parameters": SCHEMA}


def origin() -> Origin:
    return Origin("r", DemoModel(), lambda: 0.0, Random(1))


def job(**fields: Any) -> Job:
    return responses_job({**BODY, **fields}, origin())


def asked(**fields: Any) -> GenerationRequest:
    [request] = job(**fields).requests
    return request


def prompt(**fields: Any) -> str:
    return TOKENIZER.decode(asked(**fields).prompt, skip_special_tokens=False)


def chat_prompt(*messages: dict[str, Any], **fields: Any) -> str:
    body = {"model": "darkbloom-demo", "messages": list(messages), **fields}
    return TOKENIZER.decode(chat_job(body, origin()).requests[0].prompt, skip_special_tokens=False)


def refusal(**fields: Any) -> Failure:
    with pytest.raises(RequestFailed) as caught:
        job(**fields)
    failure = caught.value.failure
    assert (failure.status, failure.type) == (400, "invalid_request_error")
    assert failure.param is not None
    assert failure.param in failure.message
    return failure


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def call(arguments: Any = "{}", name: str = "f") -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def output(result: Any = "rain") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": result}


def test_text_is_a_question_and_instructions_are_the_system_prompt() -> None:
    assert prompt() == chat_prompt(user("Hi"))
    assert prompt(instructions="Be brief.") == chat_prompt({"role": "system", "content": "Be brief."}, user("Hi"))


def test_messages_need_no_type_and_have_text_or_parts() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        said("Hello."),
        user("Again"),
    ]
    expected = [
        {"role": "system", "content": "First.\n\nBe brief."},
        user("Hi"),
        {"role": "assistant", "content": "Hello."},
        user("Again"),
    ]
    assert prompt(input=items, instructions="First.") == chat_prompt(*expected)


def test_the_items_of_one_answer_are_one_message() -> None:
    items = [user("Weather?"), thought("I look."), said("Looking."), call('{"city": "Oslo"}'), call("", "g"), output()]
    assert prompt(input=items, tools=[TOOL]) == chat_prompt(
        user("Weather?"),
        {
            "role": "assistant",
            "reasoning_content": "I look.",
            "content": "Looking.",
            "tool_calls": [called("f", {"city": "Oslo"}), called("g", {})],
        },
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
        tools=[{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
    )


def test_an_answer_after_an_answer_is_a_message_of_its_own() -> None:
    assert prompt(input=[user("a"), said("b"), said("c"), user("d")]) == chat_prompt(
        user("a"), {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}, user("d")
    )
    assert prompt(input=[user("a"), call(), said("c"), user("d")]) == chat_prompt(
        user("a"),
        {"role": "assistant", "tool_calls": [called("f", {})]},
        {"role": "assistant", "content": "c"},
        user("d"),
    )


@pytest.mark.parametrize(
    "sealed", [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, thought("x")]
)
def test_reasoning_that_leads_to_nothing_is_ignored(sealed: dict[str, Any]) -> None:
    assert prompt(input=[user("a"), sealed]) == chat_prompt(user("a"))
    assert prompt(input=[sealed, user("a")]) == chat_prompt(user("a"))


@pytest.mark.parametrize("result", ["rain", [{"type": "input_text", "text": "rain"}]])
def test_a_result_is_text_or_parts(result: Any) -> None:
    assert "<tool_response>\nrain\n</tool_response>" in prompt(input=[user("a"), call(), output(result)])


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call"}, ".type"),
        ({"type": "item_reference", "id": "x"}, ".type"),
        ({"role": "tool", "content": "x"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, ".content[0]"),
        ({"role": "user", "content": ["x"]}, ".content[0]"),
        (call("{"), ".arguments"),
        (call("[1]"), ".arguments"),
        (call(3), ".arguments"),
        ({**call(), "name": None}, ".name"),
        ({**call(), "call_id": 3}, ".call_id"),
        ({"type": "function_call_output", "output": "x"}, ".call_id"),
        (output(3), ".output"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(item: dict[str, Any], param: str) -> None:
    assert refusal(input=[user("Hi"), item]).param == f"input[1]{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": [thought("x")]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "include": ["reasoning.encrypted_content"]}, "top_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"stream": "yes"}, "stream"),
        ({"stop": ["x"] * 10_000}, "stop"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_nulls_and_what_means_nothing_here_are_no_mistakes() -> None:
    nothing = dict.fromkeys(("previous_response_id", "tools", "text", "reasoning", "metadata", "store", "temperature"))
    ignored = {"user": "me", "include": ["reasoning.encrypted_content"], "service_tier": "auto", "truncation": "auto"}
    ignored |= {"n": 1, "best_of": None, "logprobs": False, "top_logprobs": 0}
    assert prompt(**nothing, **ignored, stream_options={"include_obfuscation": False}) == prompt()


def test_fields_reach_the_engine() -> None:
    request = asked(temperature=0, top_p=0.5, max_output_tokens=7, stop="END", seed=3)
    assert (request.max_tokens, request.stop) == (7, ["END"])
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.0, 0.5, 3)
    assert asked().max_tokens == 512 - len(asked().prompt)


def test_effort_is_the_switch_of_thinking() -> None:
    closed = chat_prompt(user("Hi"), reasoning_effort="none")
    assert closed == chat_prompt(user("Hi"), chat_template_kwargs={"enable_thinking": False})
    assert prompt(reasoning={"effort": "none"}) == closed
    assert prompt(reasoning={"effort": "high", "summary": "auto"}) == prompt() != closed


def test_a_response_repeats_its_request_and_stores_nothing() -> None:
    fields = {"tools": [TOOL], "metadata": {"a": "b"}, "store": True, "temperature": 0, "instructions": "Be brief."}
    response = job(**fields, max_output_tokens=5, reasoning={"effort": "low"}).translation.whole()
    assert response["store"] is False
    assert response["tools"] == [{**TOOL, "strict": None}]
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be brief.")
    assert (response["temperature"], response["top_p"], response["max_output_tokens"]) == (0, 1.0, 5)
    assert response["reasoning"]["effort"] == "low"


def test_a_response_repeats_only_what_had_an_effect() -> None:
    without = {"user": "me", "service_tier": "auto", "max_tool_calls": 1, "text": {"verbosity": "low"}}
    response = job(**without).translation.whole()
    assert not response.keys() & {"user", "service_tier", "max_tool_calls", "top_logprobs"}
    assert response["text"] == {"format": {"type": "text"}}
    likely = job(include=["message.output_text.logprobs"], top_logprobs=2).translation.whole()
    assert likely["top_logprobs"] == 2
