"""From a body to the items of its answer: OpenAI's shapes, usage, notices, and no sequence left behind."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from pydantic_core import from_json

from provider.api.surface import Answer, Chunk, Complete, Item, NoticeItem
from provider.api.wire import queue_full
from provider.errors import RequestFailed
from provider.generation import Delta, GenerationRequest, Notice
from tests.fixtures.api_serving import (
    Event,
    Script,
    ScriptedServing,
    finished,
    items_of,
    refuses,
    says,
    surface,
)

CHAT: dict[str, Any] = {"model": "darkbloom-demo", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "darkbloom-demo", "prompt": "Hi"}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


def usage(prompt: int, completion: int, accepted: int = 0, rejected: int = 0) -> dict[str, Any]:
    drafted = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, **drafted},
    }


def items(script: Script, endpoint: str, body: dict[str, Any]) -> list[Item]:
    async def run() -> list[Item]:
        return await items_of(await surface(ScriptedServing(script)).open(endpoint, body))

    return asyncio.run(run())


def whole(script: Script, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    [*_, last] = items(script, endpoint, body)
    assert isinstance(last, Complete)
    assert last.body is not None
    assert last.usage == last.body["usage"]
    return last.body


def chunks(script: Script, endpoint: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    *said, last = items(script, endpoint, {**body, "stream": True})
    assert isinstance(last, Complete)
    assert last.body is None
    return [item.data for item in said if isinstance(item, Chunk)]


def deltas(said: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    choices = [choice for chunk in said for choice in chunk["choices"]]
    return [choice["delta"] for choice in choices if choice["index"] == index]


def content(said: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(said, index))


def test_a_chat_answers_with_openais_object() -> None:
    body = whole(says("Hello.", parks=2, recomputes=1), CHATS, CHAT)
    assert body == {
        "id": body["id"],
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "darkbloom-demo",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello."},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": usage(10, 4),
        "preempt": {"parks": 2, "recomputes": 1},
    }
    assert body["id"].startswith("chatcmpl-")


def test_a_streamed_chat_says_the_role_first_and_the_reason_last() -> None:
    said = chunks(says("Hello.", parks=1), CHATS, CHAT)
    assert deltas(said)[0] == {"role": "assistant", "content": ""}
    assert content(said) == "Hello."
    assert [chunk["choices"][0]["finish_reason"] for chunk in said][-2:] == [None, "stop"]
    assert said[-1]["preempt"] == {"parks": 1, "recomputes": 0}
    assert {chunk["object"] for chunk in said} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in said}) == 1


def test_usage_is_streamed_only_when_asked_for_and_then_once_and_last() -> None:
    for endpoint, body in ((CHATS, CHAT), (COMPLETIONS, TEXT)):
        silent = chunks(says("Hello."), endpoint, body)
        assert not any("usage" in chunk or not chunk["choices"] for chunk in silent)
        asked = chunks(says("Hello."), endpoint, {**body, **STREAM})
        assert [chunk for chunk in asked if "usage" in chunk] == [asked[-1]]
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"] == whole(says("Hello."), endpoint, body)["usage"]


@pytest.mark.parametrize("run", range(1, 9))
def test_nothing_of_a_stop_string_is_said(run: int) -> None:
    script = says("alpha beta gamma delta", run)
    said = chunks(script, CHATS, {**CHAT, "stop": ["beta gamma"]})
    assert content(said) == "alpha "
    assert whole(script, COMPLETIONS, {**TEXT, "stop": "beta gamma"})["choices"][0]["text"] == "alpha "


@pytest.mark.parametrize("run", range(1, 9))
def test_a_tool_call_is_one_call_whole_and_streamed(run: int) -> None:
    body = {**CHAT, "tools": [WEATHER]}
    script = says(f"<think>\n\n</think>\n\n{CALL}", run)
    choice = whole(script, CHATS, body)["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}

    said = chunks(script, CHATS, body)
    parts = [part for delta in deltas(said) for part in delta.get("tool_calls", [])]
    assert [part["index"] for part in parts] == [0] * len(parts)
    assert [part["id"] for part in parts if "id" in part] == [parts[0]["id"]]
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    assert (content(said), said[-1]["choices"][0]["finish_reason"]) == ("", "tool_calls")


BODIES: dict[str, dict[str, Any]] = {
    CHATS: {**CHAT, "tools": [WEATHER]},
    "/v1/responses": {
        "model": "darkbloom-demo",
        "input": "Hi",
        "tools": [{"type": "function", **WEATHER["function"]}],
    },
    "/v1/messages": {
        **CHAT,
        "max_tokens": 500,
        "tools": [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}],
    },
}


def answered(script: Script, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    [*_, last] = items(script, endpoint, body)
    assert isinstance(last, Complete)
    assert last.body is not None
    return last.body


def without_tools(told: Any) -> Any:
    """A response repeats its request."""
    match told:
        case dict():
            return {key: without_tools(value) for key, value in told.items() if key not in ("tools", "tool_choice")}
        case list():
            return [without_tools(one) for one in told]
        case _:
            return told


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_call_that_nobody_wanted_is_told_on_no_surface(endpoint: str) -> None:
    none = {"type": "none"} if endpoint == "/v1/messages" else "none"
    for text, said in ((f"Hm.\n{CALL}", "Hm."), (CALL, "")):
        asked = {**BODIES[endpoint], "tool_choice": none}
        body = answered(says(text, 3), endpoint, asked)
        ended = body.get("stop_reason") or body.get("status") or body["choices"][0]["finish_reason"]
        assert ended in ("end_turn", "completed", "stop")
        for told in (body, chunks(says(text, 3), endpoint, asked)):
            told = json.dumps(without_tools(told))
            assert not [word for word in ("<", "tool_use", "function", "get_weather", "Oslo") if word in told]
            assert said in told


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_markup_inside_a_value_that_was_asked_for_is_told(choice: str) -> None:
    inside = json.dumps({"how": CALL.replace("\n", "")})
    form = {"type": "json_object"}
    body = answered(says(inside), CHATS, {**BODIES[CHATS], "tool_choice": choice, "response_format": form})
    assert body["choices"][0]["message"] == {"role": "assistant", "content": inside}


HOSTILE = [
    '{"a": "\\ud800", "\\udfff": 1}',
    '{"a": NaN, "b": -Infinity, "c": 1e999}',
    f'{{"a": {"9" * 5000}, "b": {"7" * 4096}}}',
    '{"a": ' + "[" * 300 + "]" * 300 + "}",
    '{"a": ' + '{"b": ' * 1000,
    '"{\\"a\\": NaN}"',
]


@pytest.mark.parametrize("endpoint", BODIES)
@pytest.mark.parametrize("arguments", HOSTILE)
def test_whatever_a_model_writes_as_arguments_can_be_sent(endpoint: str, arguments: str) -> None:
    """As JSON that is JSON, in UTF-8, and to be read again."""
    script = says(f'<tool_call>{{"name": "n\\ud800", "arguments": {arguments}}}</tool_call>', 50)
    body = answered(script, endpoint, BODIES[endpoint])
    assert "n\ufffd" in json.dumps(body, ensure_ascii=False)
    for one in (body, *chunks(script, endpoint, BODIES[endpoint])):
        from_json(json.dumps(one, ensure_ascii=False, allow_nan=False).encode())


def test_reasoning_is_apart_from_content() -> None:
    script = says("<think>\n1 plus 1 equals 2.\n</think>\n\n2")
    message = whole(script, CHATS, CHAT)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "2", "reasoning_content": "1 plus 1 equals 2."}
    said = chunks(script, CHATS, CHAT)
    assert "".join(delta.get("reasoning_content", "") for delta in deltas(said)) == "1 plus 1 equals 2."
    assert content(said) == "2"


def test_a_prompt_that_closed_the_think_block_gives_content_only() -> None:
    body = {**CHAT, "chat_template_kwargs": {"enable_thinking": False}}
    message = whole(says('{"answer": 2}'), CHATS, body)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": '{"answer": 2}'}


def test_an_answer_cut_by_length_says_length() -> None:
    assert whole(says("a", reason="length"), CHATS, CHAT)["choices"][0]["finish_reason"] == "length"


def test_a_completion_answers_with_openais_object() -> None:
    body = whole(says("Hello."), COMPLETIONS, TEXT)
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hello.", "logprobs": None, "finish_reason": "stop"}]
    said = chunks(says("Hello."), COMPLETIONS, TEXT)
    assert "".join(chunk["choices"][0]["text"] for chunk in said) == "Hello."
    assert said[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_completion_keeps_think_markup_and_special_tokens_as_asked() -> None:
    text = "<think>a</think><|im_end|>"
    assert whole(says(text), COMPLETIONS, TEXT)["choices"][0]["text"] == "<think>a</think>"
    raw = whole(says(text), COMPLETIONS, {**TEXT, "skip_special_tokens": False})
    assert raw["choices"][0]["text"] == text


async def echo(request: GenerationRequest) -> AsyncGenerator[Event]:
    """Says its own prompt's last token and its index, a turn apart from the others."""
    text = f"{request.prompt[-1]}/{request.sampling.index}"
    for char in text:
        await asyncio.sleep(0)
        yield Delta(request.request_id, [1], char)
    yield finished(request, len(text), parks=1)


def test_several_prompts_and_choices_share_one_answer_by_index() -> None:
    body = {**TEXT, "prompt": [[5, 6], [7]], "n": 2}
    answer = whole(echo, COMPLETIONS, body)
    assert [choice["text"] for choice in answer["choices"]] == ["6/0", "6/1", "7/0", "7/1"]
    assert answer["usage"] == usage(3, 12)
    assert answer["preempt"] == {"parks": 4, "recomputes": 0}

    said = chunks(echo, COMPLETIONS, body)
    texts = ["", "", "", ""]
    for chunk in said:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["6/0", "6/1", "7/0", "7/1"]
    assert sorted(chunk["choices"][0]["index"] for chunk in said if "preempt" in chunk) == [0, 1, 2, 3]


async def parked(request: GenerationRequest) -> AsyncGenerator[Event]:
    yield Notice(request.request_id, "preempted")
    yield Delta(request.request_id, [1], "a")
    yield Notice(request.request_id, "resumed")
    yield finished(request, 1, parks=1)


def test_notices_are_items_of_every_answer() -> None:
    for stream in (True, False):
        said = items(parked, CHATS, {**CHAT, "stream": stream})
        assert [item.kind for item in said if isinstance(item, NoticeItem)] == ["preempted", "resumed"]
        assert said[0] == NoticeItem("preempted")


def test_a_refusal_of_the_engine_comes_before_the_first_item() -> None:
    for body in (CHAT, {**CHAT, "n": 3}):
        with pytest.raises(RequestFailed) as caught:
            items(refuses(RequestFailed(queue_full("full"))), CHATS, body)
        assert caught.value.failure.code == "queue_full"


def test_a_sequence_that_ends_without_a_result_is_an_error() -> None:
    async def nothing(request: GenerationRequest) -> AsyncGenerator[Event]:
        yield Delta(request.request_id, [1], "a")

    for n in (1, 2):
        with pytest.raises(RequestFailed, match="without a result"):
            items(nothing, CHATS, {**CHAT, "n": n})


@pytest.mark.parametrize(
    ("endpoint", "body", "status"),
    [
        ("/v1/nothing", CHAT, 404),
        (CHATS, {**CHAT, "model": "other"}, 404),
        (CHATS, {"messages": []}, 400),
        (CHATS, {**CHAT, "messages": [{"role": "user", "content": "\ud800"}]}, 400),
        (COMPLETIONS, {**TEXT, "stop": "\ud800"}, 400),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(endpoint: str, body: dict[str, Any], status: int) -> None:
    with pytest.raises(RequestFailed) as caught:
        asyncio.run(surface(ScriptedServing(echo)).open(endpoint, body))
    assert caught.value.failure.status == status


def test_deep_nesting_is_refused() -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = {"a": nested}
    with pytest.raises(RequestFailed, match="nested too deeply"):
        asyncio.run(surface(ScriptedServing(echo)).open(CHATS, {**CHAT, "chat_template_kwargs": nested}))


async def endless(request: GenerationRequest) -> AsyncGenerator[Event]:
    while True:
        yield Delta(request.request_id, [1], "a")
        await asyncio.sleep(0)


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_an_answer_cancels_every_sequence(n: int) -> None:
    serving = ScriptedServing(endless)

    async def run() -> None:
        answer: Answer = await surface(serving).open(CHATS, {**CHAT, "n": n, "stream": True})
        async with aclosing(answer.items()) as said:
            async for _ in said:
                if len(serving.alive) == n:
                    break
        assert not serving.alive

    asyncio.run(run())
    assert len(serving.requests) == n


def test_a_cancelled_reader_cancels_its_sequences_while_they_are_silent() -> None:
    begun = asyncio.Semaphore(0)

    async def silent(request: GenerationRequest) -> AsyncGenerator[Event]:
        begun.release()
        await asyncio.Event().wait()
        yield finished(request, 0)

    serving = ScriptedServing(silent)

    async def run() -> None:
        for n in (1, 3):
            answer = await surface(serving).open(CHATS, {**CHAT, "n": n})
            reader = asyncio.create_task(items_of(answer))
            for _ in range(n):
                await begun.acquire()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            assert not serving.alive

    asyncio.run(run())


@pytest.mark.parametrize(("endpoint", "body"), [(CHATS, CHAT), (COMPLETIONS, TEXT)])
def test_usage_counts_drafts_that_are_part_of_the_answer_and_those_that_are_not(
    endpoint: str, body: dict[str, Any]
) -> None:
    answer = whole(says("Hi.", accepted=3, rejected=2), endpoint, {**body, "n": 2})
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 0, "accepted_prediction_tokens": 6, "rejected_prediction_tokens": 4}
