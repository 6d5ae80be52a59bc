"""The HTTP API on a real socket: the official SDK, hostile bodies, and clients that leave."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import openai
import pytest

from provider.api.access import Access
from provider.api.wire import MAX_BODY_BYTES, context_exceeded, internal_error, queue_full
from provider.errors import RequestFailed
from provider.generation import Delta, GenerationRequest, Notice
from tests.fixtures.api_serving import Event, Script, finished, refuses, says
from tests.integration.api_server import running, until

MODEL = "darkbloom-demo"
MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


async def endless(request: GenerationRequest) -> AsyncGenerator[Event]:
    while True:
        yield Delta(request.request_id, [1], "a")
        await asyncio.sleep(0.005)


async def silent(request: GenerationRequest) -> AsyncGenerator[Event]:
    await asyncio.Event().wait()
    yield finished(request, 0)


async def parked(request: GenerationRequest) -> AsyncGenerator[Event]:
    yield Notice(request.request_id, "preempted")
    yield Notice(request.request_id, "preempt-keepalive")
    yield Notice(request.request_id, "resumed")
    yield Delta(request.request_id, [1], "a")
    yield finished(request, 1, parks=1)


async def breaks_midway(request: GenerationRequest) -> AsyncGenerator[Event]:
    yield Delta(request.request_id, [1], "a")
    raise RequestFailed(internal_error("The worker has died.", "worker_died"))


GENERATING = ("/v1/chat/completions", "/v1/messages")


def event_lines(response: httpx.Response) -> list[str]:
    return [line for line in response.text.split("\n\n") if line]


# The official SDK


def test_the_openai_sdk_chats_whole_and_streamed() -> None:
    with running(says("<think>\nhm\n</think>\n\nHello there.")) as server, server.client() as client:
        whole = client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert whole.choices[0].message.content == "Hello there."
        assert whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there."
        assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]


def test_the_openai_sdk_gets_tool_calls_whole_and_streamed() -> None:
    with running(says(CALL)) as server, server.client() as client:
        whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[WEATHER])
        [call] = whole.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=[WEATHER]) as stream:
            final = stream.get_final_completion()
        [streamed] = final.choices[0].message.tool_calls or []
        assert (streamed.function.name, streamed.function.arguments) == ("get_weather", call.function.arguments)


def test_the_openai_sdk_completes_several_prompts() -> None:
    # A chunk's `finish_reason` is null until the last, which the SDK's type of a completion leaves out.
    with running(says("ab")) as server, server.client(strict=False) as client:
        whole = client.completions.create(model=MODEL, prompt=["x", "y"], n=2)
        assert [choice.text for choice in whole.choices] == ["ab"] * 4
        texts = ["", "", "", ""]
        for chunk in client.completions.create(model=MODEL, prompt=["x", "y"], n=2, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == ["ab"] * 4


def test_the_openai_sdk_lists_models() -> None:
    with running(says("")) as server, server.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).object == "model"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("some/other")


def test_the_openai_sdk_raises_typed_errors() -> None:
    with running(refuses(RequestFailed(queue_full("full", 3)))) as server, server.client() as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=MESSAGES)
        for stream in (True, False):
            with pytest.raises(openai.RateLimitError) as busy:
                client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
            assert busy.value.response.headers["retry-after"] == "3"


# Streams


def test_the_stream_is_events_that_end_with_done() -> None:
    with running(says("Hi.")) as server:
        response = server.post({**CHAT, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done = event_lines(response)
    assert done == "data: [DONE]"
    assert all(json.loads(event.removeprefix("data: "))["choices"] for event in events)


def test_each_token_leaves_at_once() -> None:
    async def waits(request: GenerationRequest) -> AsyncGenerator[Event]:
        yield Delta(request.request_id, [1], "first")
        await asyncio.Event().wait()

    with running(waits) as server, server.connect() as connection:
        send_post(connection, {**CHAT, "stream": True})
        received = b""
        while b'"first"' not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")


TOOL_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "tools": [WEATHER]},
    "/v1/responses": {"model": MODEL, "input": "Hi", "tools": [{"type": "function", **WEATHER["function"]}]},
    "/v1/messages": {
        **CHAT,
        "max_tokens": 50,
        "tools": [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}],
    },
}


@pytest.mark.parametrize("path", TOOL_BODIES)
@pytest.mark.parametrize(
    "markup", [CALL, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>']
)
def test_the_arguments_of_a_call_leave_while_it_is_written(path: str, markup: str) -> None:
    written, _, _ = markup.partition("lo")

    async def waits(request: GenerationRequest) -> AsyncGenerator[Event]:
        yield Delta(request.request_id, [1], written)
        await asyncio.Event().wait()

    with running(waits) as server, server.connect() as connection:
        send_post(connection, {**TOOL_BODIES[path], "stream": True}, path)
        received = b""
        while b'{\\"city\\": \\"Os' not in received:
            received += connection.recv(65536)
        assert b"<" not in received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("mode", ["comment", "chunk", "off", None])
def test_notices_are_comments_chunks_or_nothing(mode: str | None) -> None:
    with running(parked, notices="chunk" if mode is None else "comment") as server:
        headers = {} if mode is None else {"X-Darkbloom-Notices": mode}
        events = event_lines(server.post({**CHAT, "stream": True}, **headers))
    comments = [event for event in events if event.startswith(":")]
    data = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    empty = [chunk for chunk in data if chunk["choices"][0]["delta"] == {} and "preempt" not in chunk]
    expected = [": preempted", ": preempt-keepalive", ": resumed"] if mode == "comment" else []
    assert comments == expected
    assert len(empty) == (3 if mode in ("chunk", None) else 0)
    assert [chunk["preempt"] for chunk in data if "preempt" in chunk] == [{"parks": 1, "recomputes": 0}]


def test_an_unknown_notice_mode_is_refused() -> None:
    with running(parked) as server:
        assert server.post(CHAT, **{"X-Darkbloom-Notices": "loud"}).status_code == 400


def test_the_status_waits_for_the_first_chunk() -> None:
    with running(refuses(RequestFailed(context_exceeded(2100, 2048)))) as server:
        for stream in (True, False):
            response = server.post({**CHAT, "stream": stream})
            assert response.status_code == 400
            assert response.json()["error"]["n_prompt_tokens"] == 2100


def test_an_error_midway_is_an_event_before_done() -> None:
    with running(breaks_midway) as server:
        response = server.post({**CHAT, "stream": True})
        assert response.status_code == 200
        *_, error, done = event_lines(response)
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "worker_died"
        assert done == "data: [DONE]"
        assert server.post(CHAT).status_code == 500


def test_an_unforeseen_error_is_a_500_that_tells_nothing() -> None:
    with running(refuses(ZeroDivisionError("secret"))) as server:
        response = server.post(CHAT)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["type"] == "internal_error"


@pytest.mark.parametrize(
    ("path", "anthropic"),
    [
        ("/v1/chat/completions", False),
        ("/v1/messages", True),
        ("/v1/models", False),
        ("/v1/models", True),
        ("/props", False),
    ],
)
def test_what_no_route_foresaw_is_an_answer_like_any_other(path: str, anthropic: bool) -> None:
    def fails(*_: object) -> Any:
        raise ZeroDivisionError("secret")

    with running(says("Hi."), access=Access(origins=("*",))) as server, httpx.Client(base_url=server.url) as client:
        server.serving.model = server.serving.models = server.status.props = fails  # type: ignore[method-assign]
        headers = {"X-Request-ID": "mine-1", "Origin": "https://a.page"}
        headers |= {"anthropic-version": "2023-06-01"} if path == "/v1/models" and anthropic else {}
        connections = set()
        for _ in range(2):
            response = client.request("POST" if path in GENERATING else "GET", path, json=CHAT, headers=headers)
            assert (response.status_code, response.headers["x-request-id"]) == (500, "mine-1")
            assert response.headers.get("request-id") == ("mine-1" if anthropic else None)
            assert response.headers["access-control-allow-origin"] == "*"
            body = response.json()
            assert (body.get("type"), body["error"]["code"]) == ("error" if anthropic else None, "internal_error")
            assert body["error"]["type"] == ("api_error" if anthropic else "internal_error")
            assert "secret" not in response.text
            connections.add(response.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(connections) == 1, "the connection goes on"


# Clients that leave


def send_post(connection: socket.socket, body: Any, path: str = "/v1/chat/completions") -> None:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


@pytest.mark.parametrize("script", [endless, silent])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_cancels_its_generation(script: Script, stream: bool, n: int) -> None:
    with running(script) as server:
        with server.connect() as connection:
            send_post(connection, {**CHAT, "stream": stream, "n": n})
            until(lambda: len(server.serving.alive) == n)
        until(lambda: not server.serving.alive, timeout_s=1)
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_client_that_leaves_while_parked_cancels_its_generation() -> None:
    async def parks(request: GenerationRequest) -> AsyncGenerator[Event]:
        yield Notice(request.request_id, "preempted")
        await asyncio.Event().wait()

    with running(parks) as server:
        with server.connect() as connection:
            send_post(connection, {**CHAT, "stream": True})
            received = b""
            while b": preempted" not in received:
                received += connection.recv(65536)
        until(lambda: not server.serving.alive, timeout_s=1)


def test_a_client_that_leaves_amid_its_body_harms_nobody() -> None:
    with running(says("Hi.")) as server:
        with server.connect() as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        assert server.post(CHAT).status_code == 200
        assert len(server.serving.requests) == 1


def test_a_client_that_does_not_read_holds_its_own_stream_only() -> None:
    async def torrent(request: GenerationRequest) -> AsyncGenerator[Event]:
        for _ in range(1_000_000):
            yield Delta(request.request_id, [1], "a" * 1000)
            await asyncio.sleep(0)

    with running(torrent) as server:
        with server.connect() as connection:
            send_post(connection, {**CHAT, "stream": True})
            until(lambda: bool(server.serving.alive))
            assert httpx.get(f"{server.url}/health").status_code == 200
        until(lambda: not server.serving.alive, timeout_s=2)


# Bodies that are none


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"x"',
        b"{} {}",
        b"\xff\xfe",
        b'{"model": NaN}',
        b'{"model": "\\ud800"}',
        b'{"model": "\xff"}',
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"model": "darkbloom-demo", "messages": ' + b"[" * 500 + b"]" * 500 + b"}",
        b"1" * 10_000,
    ],
)
def test_a_body_that_is_no_request_is_a_400(body: bytes) -> None:
    with running(says("Hi.")) as server:
        response = server.post(body)
        assert response.status_code == 400
        assert set(response.json()["error"]) == {"message", "type", "code", "param"}
        assert server.post(CHAT).status_code == 200


def test_a_body_over_the_limit_is_a_413() -> None:
    with running(says("Hi.")) as server:
        big = b'{"model": "' + b"a" * MAX_BODY_BYTES + b'"}'
        assert server.post(big).status_code == 413

        def chunked() -> Iterator[bytes]:
            yield from (big[start : start + 65536] for start in range(0, len(big), 65536))

        response = httpx.post(f"{server.url}/v1/completions", content=chunked(), timeout=30)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(big)}\r\n"
        for expects in ("Expect: 100-continue\r\n", ""):
            with server.connect() as connection:
                connection.sendall(f"{head}{expects}\r\n".encode())
                assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
        assert server.post(CHAT).status_code == 200


def test_a_body_just_within_the_limit_is_read() -> None:
    with running(says("Hi.")) as server:
        padded = json.dumps(CHAT).encode().ljust(MAX_BODY_BYTES)
        assert server.post(padded).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"messages": []},
        {"stop": [f"stop {n}" for n in range(10_000)]},
        {"messages": [{"role": "user", "content": "a " * 600}]},
        {"chat_template_kwargs": {"tools": 1}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
def test_a_request_that_cannot_be_is_a_400_in_openais_form(fields: dict[str, Any]) -> None:
    with running(says("Hi.")) as server:
        response = server.post({**CHAT, **fields})
        assert response.status_code == 400
        assert {"message", "type", "code", "param"} <= set(response.json()["error"])
        assert not server.serving.requests


# Around the generation


def test_unknown_routes_and_methods_answer_in_openais_form() -> None:
    with running(says("")) as server:
        missing = httpx.get(f"{server.url}/v1/nothing")
        wrong = httpx.get(f"{server.url}/v1/chat/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


def test_the_provider_tells_of_itself() -> None:
    with running(says("")) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/props").json() == {"n_ctx": 512}
        assert client.get("/slots").json() == [{"id": 0}]
        assert client.get("/metrics").text == "darkbloom_up 1\n"
        assert client.get("/docs").status_code == 200
        for state, expected in (("ok", 200), ("draining", 200), ("starting", 503), ("stalled", 503)):
            server.status.state = state  # type: ignore[assignment]
            response = client.get("/health")
            assert (response.status_code, response.json()) == (expected, {"status": state})


def test_the_document_describes_the_bodies() -> None:
    with running(says("")) as server:
        document = httpx.get(f"{server.url}/openapi.json").json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    assert "temperature" in document["components"]["schemas"]["ChatBody"]["properties"]


def test_a_key_is_asked_for_when_one_is_set() -> None:
    with running(says("Hi."), access=Access(("dbk_secret",))) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "é"}, {"Authorization": "dbk_secret"}):
            encoded = {name: value.encode() for name, value in headers.items()}
            response = httpx.get(f"{server.url}/v1/models", headers=encoded)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            assert "dbk_secret" not in response.text
        for headers in ({"Authorization": "Bearer dbk_secret"}, {"x-api-key": "dbk_secret"}):
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        for path in ("/health", "/metrics"):
            assert httpx.get(server.url + path).status_code == 200
        with server.client("wrong") as client, pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model=MODEL, messages=MESSAGES)


def test_every_answer_carries_a_request_id() -> None:
    with running(says("Hi.")) as server:
        assert server.post(CHAT, **{"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
        assert server.post(b"{", **{"X-Request-ID": "mine-2"}).headers["x-request-id"] == "mine-2"
        drawn = server.post({**CHAT, "stream": True}, **{"X-Request-ID": "no spaces"}).headers["x-request-id"]
        assert drawn.startswith("req-")
