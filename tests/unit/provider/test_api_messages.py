"""Anthropic's messages: the same question as a chat, in other words, and the answer told back in theirs."""

from random import Random
from typing import Any

import pytest

from provider.api.job import Job, Origin, chat_job
from provider.api.jobs import MOST_COUNTED_TOKENS, count_job, messages_job
from provider.api.wire import Failure
from provider.errors import RequestFailed
from provider.generation import GenerationRequest
from tests.fixtures.api_serving import TOKENIZER, DemoModel

BODY: dict[str, Any] = {"model": "darkbloom-demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"a": DEEP}


def origin(n_ctx: int = 512) -> Origin:
    return Origin("r", DemoModel(n_ctx=n_ctx), lambda: 0.0, Random(1))


def job(**fields: Any) -> Job:
    return messages_job({**BODY, **fields}, origin())


def asked(**fields: Any) -> GenerationRequest:
    [request] = job(**fields).requests
    return request


def prompt(**fields: Any) -> str:
    return TOKENIZER.decode(asked(**fields).prompt, skip_special_tokens=False)


def chat_prompt(messages: list[dict[str, Any]], **fields: Any) -> str:
    body = {"model": "darkbloom-demo", "messages": messages, **fields}
    return TOKENIZER.decode(chat_job(body, origin()).requests[0].prompt, skip_special_tokens=False)


def refusal(**fields: Any) -> Failure:
    with pytest.raises(RequestFailed) as caught:
        job(**fields)
    failure = caught.value.failure
    assert (failure.status, failure.type) == (400, "invalid_request_error")
    assert failure.param is not None
    assert failure.param in failure.message
    return failure


def test_the_system_prompt_is_text_or_blocks() -> None:
    expected = chat_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert prompt(system="Be brief.") == expected
    blocks = [
        {"type": "text", "text": "Be "},
        {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}},
    ]
    assert prompt(system=blocks) == expected
    assert prompt(system="") == prompt(system=None) == prompt()


def test_a_loop_of_tools_is_the_conversation_that_a_chat_has() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo", "days": 2}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}
    thought = {"type": "thinking", "thinking": "I should look.", "signature": ""}
    told = prompt(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {
                "role": "assistant",
                "content": [
                    thought,
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "Looking."},
                    call,
                ],
            },
            {"role": "user", "content": [result]},
        ],
        tools=[TOOL],
    )
    function = {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}
    assert told == chat_prompt(
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": "Looking.",
                "reasoning_content": "I should look.",
                "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
        ],
        tools=[
            {
                "type": "function",
                "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA},
            }
        ],
    )
    assert "I should look." in told
    assert "rain" in told


def test_what_is_said_around_results_keeps_its_place() -> None:
    result = {"type": "tool_result", "tool_use_id": "t"}
    text = [{"type": "text", "text": "before"}, result, {"type": "text", "text": "after"}]
    assert prompt(messages=[{"role": "user", "content": text}]) == chat_prompt(
        [
            {"role": "user", "content": "before"},
            {"role": "tool", "content": ""},
            {"role": "user", "content": "after"},
        ]
    )
    assert prompt(messages=[{"role": "user", "content": []}]) == chat_prompt([{"role": "user", "content": ""}])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"temperature": 3}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 10_000}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"metadata": "me"}, "metadata"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", {"type": "image", "source": {}}, ""),
        ("user", {"type": "document"}, ""),
        ("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}, ""),
        ("user", {"type": "text"}, ".text"),
        ("user", {"type": "tool_result", "content": "x"}, ".tool_use_id"),
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": 3}, ".content"),
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}, ".content[0]"),
        ("user", {}, ""),
        ("assistant", {"type": "tool_result", "tool_use_id": "t"}, ""),
        ("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": "{"}, ".input"),
        ("assistant", {"type": "tool_use", "id": "t", "name": 3, "input": {}}, ".name"),
        ("assistant", {"type": "tool_use", "name": "f", "input": {}}, ".id"),
        ("assistant", {"type": "tool_use", "id": "t", "name": "f", "input": DEEP}, ".input"),
        ("assistant", {"type": "thinking"}, ".thinking"),
    ],
)
def test_a_block_that_cannot_be_read_is_named(role: str, block: dict[str, Any], param: str) -> None:
    good = {"role": "user", "content": "Hi"}
    failure = refusal(messages=[good, {"role": role, "content": [{"type": "text", "text": "a"}, block]}])
    assert failure.param == f"messages[1].content[1]{param}"


def test_fields_reach_the_engine() -> None:
    request = asked(
        temperature=0, top_p=0.5, top_k=4, stop_sequences=["a", "b"], metadata={"user_id": "me"}, seed=5, priority=2
    )
    assert (request.max_tokens, request.stop, request.priority) == (9, ["a", "b"], 2)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.0, 0.5, 4)
    assert request.sampling.seed == 5


def test_openais_fields_of_streams_are_nothing_here() -> None:
    assert len(job(n=1, stop="x", stream_options={"include_usage": True}, logprobs=False).requests) == 1
    assert asked(stop="x").stop == []


@pytest.mark.parametrize("fields", [{"n": 2}, {"best_of": 2}, {"logprobs": True}, {"top_logprobs": 1}, {"n": "2"}])
def test_what_would_be_asked_in_vain_is_refused_by_name(fields: dict[str, Any]) -> None:
    assert refusal(**fields).param == next(iter(fields))


def test_thinking_is_the_templates_switch() -> None:
    closed = chat_prompt(BODY["messages"], chat_template_kwargs={"enable_thinking": False})
    assert prompt(thinking={"type": "disabled"}) == closed
    assert prompt(thinking={"type": "enabled", "budget_tokens": 1024}) == prompt() != closed
    assert prompt(thinking={"type": "adaptive"}, chat_template_kwargs={"enable_thinking": False}) == closed


def test_tool_choice_none_hides_the_tools() -> None:
    assert prompt(tools=[TOOL], tool_choice={"type": "none"}) == prompt()
    assert prompt(tools=[TOOL], tool_choice={"type": "auto"}) == prompt(tools=[TOOL]) != prompt()


def test_counting_counts_the_prompt_and_generates_nothing() -> None:
    fields = {"system": "Be brief.", "tools": [TOOL]}
    counted = count_job({**BODY, **fields, "max_tokens": None}, origin())
    assert counted.requests == []
    assert counted.translation.whole() == {"input_tokens": len(asked(**fields).prompt)}
    assert counted.translation.tally.usage()["total_tokens"] == 0


def test_a_prompt_beyond_the_context_is_counted_all_the_same() -> None:
    said = {**BODY, "messages": [{"role": "user", "content": "a " * 90}]}
    within = count_job(said, origin()).translation.whole()
    assert count_job(said, origin(n_ctx=64)).translation.whole() == within
    assert within["input_tokens"] > 64
    with pytest.raises(RequestFailed) as caught:
        count_job({**BODY, "messages": [{"role": "user", "content": "a " * 2**19}]}, origin(n_ctx=64))
    assert caught.value.failure.detail["n_ctx"] == 64
    assert caught.value.failure.detail["n_prompt_tokens"] >= MOST_COUNTED_TOKENS


def test_a_prompt_beyond_the_context_is_refused_with_its_numbers() -> None:
    with pytest.raises(RequestFailed) as caught:
        messages_job({**BODY, "messages": [{"role": "user", "content": "a " * 90}]}, origin(n_ctx=64))
    assert caught.value.failure.type == "exceed_context_size_error"
    assert caught.value.failure.detail["n_ctx"] == 64
