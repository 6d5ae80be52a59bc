"""The official SDKs against a scripted provider, over HTTP, with every answer held to its type; and the bytes below."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from provider.api.access import Access
from provider.api.wire import context_exceeded, internal_error, queue_full, unavailable
from provider.errors import RequestFailed
from provider.generation import Delta, GenerationRequest, Notice
from tests.fixtures.api_answers import message_of, response_of
from tests.fixtures.api_serving import Event, finished, refuses, says
from tests.integration.api_server import Running, running

MODEL = "darkbloom-demo"
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
MESSAGES = {"model": MODEL, "max_tokens": 50, "messages": HELLO}
RESPONSES = {"model": MODEL, "input": "Hi"}
BODIES = {"/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ANTHROPIC_TOOL: Any = {"name": "get_weather", "input_schema": SCHEMA}
OPENAI_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
THOUGHT = "<think>\nhm\n</think>\n\nHello there."


async def parked(request: GenerationRequest) -> AsyncGenerator[Event]:
    yield Notice(request.request_id, "preempted")
    yield Delta(request.request_id, [1], "a")
    yield Notice(request.request_id, "preempt-keepalive")
    yield Notice(request.request_id, "resumed")
    yield Delta(request.request_id, [1], "b")
    yield finished(request, 2, parks=1)


async def breaks_midway(request: GenerationRequest) -> AsyncGenerator[Event]:
    yield Delta(request.request_id, [1], "a")
    raise RequestFailed(internal_error("The worker has died.", "worker_died"))


def events_in(text: str) -> list[dict[str, Any]]:
    """What the events of a stream hold. Each is named as its own type says."""
    events = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


def streamed(server: Running, path: str, **headers: str) -> list[dict[str, Any]]:
    response = server.post({**BODIES[path], "stream": True}, path, **headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_in(response.text)


# Anthropic's


def test_the_anthropic_sdk_gets_a_message_whole_and_streamed() -> None:
    with running(says(THOUGHT)) as server, server.anthropic() as client:
        whole = client.messages.create(**MESSAGES, extra_headers={"X-Request-ID": "mine"})
        assert whole._request_id == "mine"
        thought, said = whole.content
        assert (thought.type, said.type) == ("thinking", "text")
        assert thought.thinking == "hm"
        assert said.text == "Hello there."
        assert whole.stop_reason == "end_turn"
        with client.messages.stream(**MESSAGES) as stream:
            assert "".join(stream.text_stream) == "Hello there."
            final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.usage.to_dict() == whole.usage.to_dict()
    assert final.stop_reason == whole.stop_reason


def test_the_anthropic_sdk_runs_a_loop_of_tools() -> None:
    asked: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]
    with running(says(f"Looking.\n{CALL}")) as server, server.anthropic() as client:
        for stream in (False, True):
            if stream:
                with client.messages.stream(**{**MESSAGES, "messages": asked}, tools=[ANTHROPIC_TOOL]) as events:
                    answer: Any = events.get_final_message()
            else:
                answer = client.messages.create(**{**MESSAGES, "messages": asked}, tools=[ANTHROPIC_TOOL])
            assert answer.stop_reason == "tool_use"
            said, call = answer.content
            assert said.text == "Looking."
            assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Oslo"})
            result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
            history = [
                *asked,
                answer.to_param() if stream is False else {"role": "assistant", "content": answer.content},
            ]
            client.messages.create(
                **{**MESSAGES, "messages": [*history, {"role": "user", "content": [result]}]}, tools=[ANTHROPIC_TOOL]
            )
            prompt = server.prompt_of(-1)
            assert f"Looking.\n\n{CALL}<|im_end|>" in prompt
            assert "<tool_response>\nrain\n</tool_response>" in prompt


def test_the_anthropic_sdk_hears_of_stop_sequences_and_limits() -> None:
    with running(says("alpha beta gamma delta")) as server, server.anthropic() as client:
        stopped = client.messages.create(**MESSAGES, stop_sequences=["beta gamma"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "beta gamma")
        assert [block.to_dict() for block in stopped.content] == [{"type": "text", "text": "alpha "}]
    with running(says("alpha", reason="length")) as server, server.anthropic() as client:
        assert client.messages.create(**MESSAGES).stop_reason == "max_tokens"
        assert server.serving.requests[-1].max_tokens == 50


def test_the_anthropic_sdk_counts_tokens() -> None:
    with running(says("Hi.")) as server, server.anthropic() as client:
        counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.", tools=[ANTHROPIC_TOOL])
        assert not server.serving.requests
        used = client.messages.create(**MESSAGES, system="Be brief.", tools=[ANTHROPIC_TOOL]).usage
    assert counted.input_tokens == used.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_the_anthropic_sdk_raises_typed_errors(stream: bool) -> None:
    with running(says("Hi."), access=Access(("dbk_secret",))) as server:
        with server.anthropic("wrong") as client, pytest.raises(anthropic.AuthenticationError) as unknown:
            client.messages.create(**MESSAGES, stream=stream)
        assert unknown.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        with server.anthropic("dbk_secret") as client:
            with pytest.raises(anthropic.NotFoundError) as missing:
                client.messages.create(**{**MESSAGES, "model": "other"}, stream=stream)
            assert missing.value.body["error"]["code"] == "model_not_found"  # type: ignore[index]
            with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]"):
                client.messages.create(
                    **{**MESSAGES, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, stream=stream
                )
    for failure, raised in (
        (queue_full("full", 3), anthropic.RateLimitError),
        (unavailable("loading"), anthropic.InternalServerError),
        (context_exceeded(2100, 2048), anthropic.BadRequestError),
    ):
        with running(refuses(RequestFailed(failure))) as server, server.anthropic() as client:
            with pytest.raises(raised) as refused:
                client.messages.create(**MESSAGES, stream=stream)
            assert refused.value.status_code == failure.status
            body: Any = refused.value.body
            assert (body["type"], body["error"]["code"]) == ("error", failure.code)
            assert failure.detail.items() <= body["error"].items()


def test_the_anthropic_sdk_lists_models() -> None:
    with running(says("Hi."), access=Access(("k",))) as server, server.anthropic("k") as client:
        [listed] = list(client.models.list(limit=5))
        assert (listed.id, listed.type, listed.max_input_tokens) == (MODEL, "model", 512)
        assert client.models.retrieve(MODEL) == listed
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.models.retrieve("other")
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        with pytest.raises(anthropic.AuthenticationError) as unknown, server.anthropic("wrong") as stranger:
            stranger.models.list()
        assert unknown.value.body["type"] == "error"  # type: ignore[index]
        with server.client("k") as gpt:
            assert [one.object for one in gpt.models.list()] == ["model"]


def test_a_message_that_breaks_midway_ends_with_an_error_event() -> None:
    with running(breaks_midway) as server:
        *said, error = streamed(server, "/v1/messages")
        assert said[0]["type"] == "message_start"
        assert error["type"] == "error"
        assert (error["error"]["type"], error["error"]["code"]) == ("api_error", "worker_died")
        with server.anthropic() as client, pytest.raises(anthropic.APIStatusError, match="The worker has died"):
            list(client.messages.create(**MESSAGES, stream=True))


def test_a_message_takes_the_headers_of_its_api() -> None:
    with running(says("Hi."), access=Access(("k",))) as server:
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
        assert server.post(MESSAGES, "/v1/messages", **headers).status_code == 200
        refused = server.post(b"{", "/v1/messages", **headers).json()
        assert refused["type"] == "error"
        assert refused["error"]["code"] == "invalid_json"
        wrong = httpx.get(f"{server.url}/v1/messages", headers=headers)
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")


# OpenAI's responses


def test_the_openai_sdk_gets_a_response_whole_and_streamed() -> None:
    with running(says(THOUGHT)) as server, server.client() as client:
        whole = client.responses.create(**RESPONSES, metadata={"a": "b"}, store=True)
        assert whole.output_text == "Hello there."
        assert [item.type for item in whole.output] == ["reasoning", "message"]
        assert (whole.status, whole.metadata) == ("completed", {"a": "b"})
        events = list(client.responses.create(**RESPONSES, stream=True))
        assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == "Hello there."
        assert "".join(one.delta for one in events if one.type == "response.reasoning_text.delta") == "hm"
        with client.responses.stream(**RESPONSES) as stream:
            final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage


def test_the_openai_sdk_runs_a_loop_of_tools_over_responses() -> None:
    asked: list[Any] = [{"role": "user", "content": "Weather in Oslo?"}]
    with running(says(f"Looking.\n{CALL}")) as server, server.client() as client:
        for stream in (False, True):
            if stream:
                with client.responses.stream(model=MODEL, input=asked, tools=[OPENAI_TOOL]) as events:
                    answer: Any = events.get_final_response()
            else:
                answer = client.responses.create(model=MODEL, input=asked, tools=[OPENAI_TOOL])
            said, call = answer.output
            assert said.content[0].text == "Looking."
            assert (call.type, call.name, json.loads(call.arguments)) == (
                "function_call",
                "get_weather",
                {"city": "Oslo"},
            )
            result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
            items = [*asked, *(item.to_dict() for item in answer.output), result]
            client.responses.create(model=MODEL, input=items, tools=[OPENAI_TOOL])
            prompt = server.prompt_of(-1)
            assert f"Looking.\n\n{CALL}<|im_end|>" in prompt
            assert "<tool_response>\nrain\n</tool_response>" in prompt


def test_the_openai_sdk_hears_of_limits_and_errors_of_responses() -> None:
    with running(says("alpha", reason="length")) as server, server.client() as client:
        cut = client.responses.create(**RESPONSES, max_output_tokens=7)
        assert (cut.status, server.serving.requests[-1].max_tokens) == ("incomplete", 7)
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"
        with pytest.raises(openai.BadRequestError) as bad:
            client.responses.create(**RESPONSES, previous_response_id="resp_1")
        assert bad.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError) as malformed:
            client.responses.create(
                model=MODEL, input=[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]
            )
        assert malformed.value.param == "input[0].arguments"


def test_a_response_that_breaks_midway_says_so_in_its_own_words() -> None:
    with running(breaks_midway) as server:
        *said, error, failed = streamed(server, "/v1/responses")
        numbers = [event["sequence_number"] for event in (*said, error, failed)]
        assert numbers == list(range(len(numbers)))
        assert (error["type"], error["code"]) == ("error", "worker_died")
        assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
        assert failed["response"]["error"]["code"] == "server_error"
        with server.client(strict=False) as client:
            events = list(client.responses.create(**RESPONSES, stream=True))
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert events[-1].response.error.message == "The worker has died."


# Both


@pytest.mark.parametrize("path", BODIES)
def test_notices_are_comments_or_events_that_say_nothing(path: str) -> None:
    read = message_of if path == "/v1/messages" else response_of
    with running(parked) as server:
        body = {**BODIES[path], "stream": True}
        raw = {
            mode: server.post(body, path, **{"X-Darkbloom-Notices": mode}).text for mode in ("comment", "chunk", "off")
        }
    comments = [block for block in raw["comment"].split("\n\n") if block.startswith(":")]
    assert comments == [": preempted", ": preempt-keepalive", ": resumed"]
    assert ":" not in {line[:1] for mode in ("chunk", "off") for line in raw[mode].split("\n")}
    empty = [event for event in events_in(raw["chunk"]) if event["type"] in ("ping", "keepalive")]
    assert len(empty) == 3
    plain = read(events_in(raw["off"]))
    for mode in ("comment", "chunk"):
        assert shape(read(events_in(raw[mode]))) == shape(plain)
    assert plain["preempt"] == {"parks": 1, "recomputes": 0}


def shape(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what every answer has for itself."""
    parts = {"content", "output", "usage", "stop_reason", "status", "preempt"}
    kept = {key: value for key, value in answer.items() if key in parts}
    for name in kept.keys() & {"output"}:
        kept[name] = [{**item, "id": None} for item in kept[name]]
    return kept


@pytest.mark.parametrize("path", BODIES)
def test_the_sdks_bear_notices_in_every_mode(path: str) -> None:
    with running(parked) as server, server.client(strict=False) as openai_client, server.anthropic() as client:
        for mode in ("comment", "chunk", "off"):
            headers = {"X-Darkbloom-Notices": mode}
            if path == "/v1/messages":
                with client.messages.stream(**MESSAGES, extra_headers=headers) as stream:
                    assert stream.get_final_text() == "ab"
            else:
                events = list(openai_client.responses.create(**RESPONSES, stream=True, extra_headers=headers))
                assert events[-1].type == "response.completed"
                assert events[-1].response.output_text == "ab"


@pytest.mark.parametrize("path", BODIES)
def test_no_stream_has_anything_after_its_last_event(path: str) -> None:
    with running(says("Hi.")) as server:
        text = server.post({**BODIES[path], "stream": True}, path).text
    assert "[DONE]" not in text
    assert "id:" not in {line[:3] for line in text.split("\n")}
    assert events_in(text)[-1]["type"] in ("message_stop", "response.completed")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "a " * 600}]}),
        ("/v1/responses", {"input": "a " * 600}),
    ],
)
def test_a_prompt_beyond_the_context_says_how_long_it_is(path: str, fields: dict[str, Any]) -> None:
    with running(says("Hi.")) as server:
        response = server.post({**MESSAGES, **fields}, path)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", 512)
    assert error["n_prompt_tokens"] > 512


@pytest.mark.parametrize("path", [*BODIES, "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model": NaN}', b"[" * 100_000, b'{"model": "\\ud800"}', b"\xff"]
)
def test_a_body_that_is_no_request_is_a_400(path: str, body: bytes) -> None:
    with running(says("Hi.")) as server:
        response = server.post(body, path)
        assert response.status_code == 400
        assert {"message", "type", "code", "param"} <= set(response.json()["error"])
        assert (response.json().get("type") == "error") == path.startswith("/v1/messages")


def test_the_document_lists_every_route_with_its_body() -> None:
    with running(says("")) as server:
        document = httpx.get(f"{server.url}/openapi.json").json()
    shapes = {
        "/v1/messages": "MessagesBody",
        "/v1/messages/count_tokens": "CountBody",
        "/v1/responses": "ResponsesBody",
    }
    for path, shape in shapes.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{shape}"}
        assert shape in document["components"]["schemas"]
    operations = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(operations)) == len(operations)
