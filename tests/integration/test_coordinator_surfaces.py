"""Messages and responses through a coordinator: named events, errors in their own form, nothing billed twice."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from provider.protocol import InferenceChunk, InferenceComplete, InferenceRequest
from tests.integration.coordinator_harness import MODEL, Provider, coordinator, events, postgres, provider, rows

__all__ = ["postgres"]

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    RESPONSES: {"model": MODEL, "input": "Hi"},
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 0},
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": MODEL,
    "status": "in_progress",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "error": None,
}
BEGUN: dict[str, list[dict[str, Any]]] = {
    MESSAGES: [
        {"type": "message_start", "message": MESSAGE},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hé"}},
    ],
    RESPONSES: [
        {"type": "response.created", "sequence_number": 0, "response": RESPONSE},
        {"type": "response.in_progress", "sequence_number": 1, "response": RESPONSE},
        {
            "type": "response.output_text.delta",
            "sequence_number": 2,
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": "hé",
            "logprobs": [],
        },
    ],
}


async def say(played: Provider, request: InferenceRequest, seq: int, data: dict[str, Any]) -> None:
    await played.say(InferenceChunk(request_id=request.request_id, seq=seq, data=data))


async def begins_and_parks(played: Provider, request: InferenceRequest) -> None:
    await played.accept(request)
    await played.notice(request, 0, "preempted")
    for seq, data in enumerate(BEGUN[request.endpoint], start=1):
        await say(played, request, seq, data)
    await played.notice(request, 4, "resumed")
    await played.complete(request, 5)


async def begins_and_breaks(played: Provider, request: InferenceRequest) -> None:
    await played.accept(request)
    for seq, data in enumerate(BEGUN[request.endpoint]):
        await say(played, request, seq, data)
    await played.fail(request, 3, status=500, code="worker_died", message="The worker has died.", retryable=False)


def named(data: dict[str, Any]) -> str:
    return f"event: {data['type']}\ndata: " + json.dumps(data, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_is_relayed_with_the_names_of_its_events(postgres: str, path: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, begins_and_parks), running.client() as client:
            got = {}
            for mode in ("comment", "chunk", "off"):
                headers = {"X-Darkbloom-Notices": mode}
                answer = await client.post(path, json={**BODIES[path], "stream": True}, headers=headers)
                got[mode] = events(answer.text)
        said = [named(data) for data in BEGUN[path]]
        empty = {
            MESSAGES: [{"type": "ping"}] * 2,
            RESPONSES: [{"type": "keepalive", "sequence_number": number} for number in (0, 2)],
        }[path]
        assert got["off"] == said
        assert got["comment"] == [": preempted", *said, ": resumed"]
        assert got["chunk"] == [named(empty[0]), *said, named(empty[1])]

    asyncio.run(scene())


def test_a_stream_that_breaks_midway_ends_in_the_form_of_its_api(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, begins_and_breaks):
            async with running.client() as client:
                message, response = [
                    events((await client.post(path, json={**body, "stream": True})).text)
                    for path, body in BODIES.items()
                ]
            async with anthropic.AsyncAnthropic(base_url=running.url, api_key=running.api_key, max_retries=0) as claude:
                with pytest.raises(anthropic.APIStatusError, match="The worker has died"):
                    async for _ in await claude.messages.create(**BODIES[MESSAGES], stream=True):
                        pass
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.api_key) as gpt:
                stream = await gpt.responses.create(**BODIES[RESPONSES], stream=True)
                *_, failed = [event async for event in stream]
            assert failed.type == "response.failed"
            assert failed.response.error is not None
            assert failed.response.error.message == "The worker has died."
        assert message[-1].startswith("event: error\n")
        error = json.loads(message[-1].partition("data: ")[2])
        assert (error["type"], error["error"]["type"], error["error"]["code"]) == ("error", "api_error", "worker_died")
        assert [one.partition("\n")[0] for one in response[-2:]] == ["event: error", "event: response.failed"]
        numbers = [json.loads(one.partition("data: ")[2])["sequence_number"] for one in response]
        assert numbers == [0, 1, 2, 3, 4]

    asyncio.run(scene())


def test_a_chunk_that_is_no_event_of_the_api_ends_its_stream_and_writes_no_line_of_its_own(postgres: str) -> None:
    kinds = iter(["a\n\ndata: INJECTED", "", 5, None])

    async def names_badly(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        await say(played, request, 0, BEGUN[request.endpoint][0])
        await say(played, request, 1, {"type": next(kinds), "sequence_number": "x", "response": 5})

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, names_badly), running.client() as client:
            for path in [*BODIES, *BODIES]:
                told = events((await client.post(path, json={**BODIES[path], "stream": True})).text)
                assert told[0] == named(BEGUN[path][0])
                assert told[1].startswith("event: error\n")
                assert '"code":"malformed_frame"' in told[1]
                assert not any(one.startswith("data: INJECTED") for one in "\n".join(told).split("\n"))

    asyncio.run(scene())


def test_a_broken_stream_is_billed_for_what_was_delivered(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, begins_and_breaks), running.client() as client:
            await client.post(MESSAGES, json={**BODIES[MESSAGES], "stream": True})
            assert await running.usage() == [("failed", "worker_died", 1, 3, None, 1)]

    asyncio.run(scene())


def test_counting_is_an_object_and_costs_nothing(postgres: str) -> None:
    async def counts(played: Provider, request: InferenceRequest) -> None:
        await played.accept(request)
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        body = {"input_tokens": 12}
        await played.say(InferenceComplete(request_id=request.request_id, seq=0, body=body, usage=usage))

    async def scene() -> None:
        async with coordinator(postgres) as running, provider(running, counts) as played, running.client() as client:
            body = {**BODIES[MESSAGES], "stream": True}
            answer = await client.post(COUNT, json=body)
            request: InferenceRequest = await played.hears(InferenceRequest)
            assert (request.endpoint, request.body) == (COUNT, body)
            assert (answer.status_code, answer.json()) == (200, {"input_tokens": 12})
            assert await running.usage() == [("completed", None, 1, 0, 0, None)]
            assert await asyncio.to_thread(rows, running.database, "select endpoint from usage") == [(COUNT,)]

    asyncio.run(scene())


def test_a_fleet_without_the_model_answers_in_anthropics_form(postgres: str) -> None:
    async def scene() -> None:
        async with coordinator(postgres) as running, running.client() as client, running.client("wrong") as stranger:
            missing = await client.post(MESSAGES, json=BODIES[MESSAGES])
            unnamed = await client.post(COUNT, json={})
            unknown = await stranger.post(MESSAGES, json=BODIES[MESSAGES])
            large = await client.post(MESSAGES, content=b"x" * (17 * 2**20))
            other = await client.post(RESPONSES, json=BODIES[RESPONSES])
        for answer, status, kind, code in (
            (missing, 404, "not_found_error", "model_not_found"),
            (unnamed, 400, "invalid_request_error", "missing_required_parameter"),
            (unknown, 401, "authentication_error", "invalid_api_key"),
            (large, 413, "request_too_large", "body_too_large"),
        ):
            assert answer.json()["type"] == "error"
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (status, kind, code)
        assert other.json()["error"]["type"] == "invalid_request_error"
        assert "type" not in other.json()

    asyncio.run(scene())
