"""Keys, rates, web pages, and clients that are too slow, on a real socket."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import httpx
import openai
import pytest

import provider.api.body
import provider.api.stream
from provider.api.access import MAX_CALLERS, Access, RateGate
from provider.generation import Delta, GenerationRequest
from tests.fixtures.api_serving import Event, says
from tests.integration.api_server import running, until

MODEL = "darkbloom-demo"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 5}


def test_any_of_several_keys_is_good() -> None:
    with running(says("Hi."), access=Access(("dbk_one", "dbk_two"))) as server:
        for key in ("dbk_one", "dbk_two"):
            assert server.post(CHAT, Authorization=f"Bearer {key}").status_code == 200
            assert server.post(MESSAGE, "/v1/messages", **{"x-api-key": key}).status_code == 200
        for key in ("dbk_three", "dbk_one,dbk_two"):
            refused = server.post(CHAT, Authorization=f"Bearer {key}")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_a_key_that_asks_too_often_is_told_when_to_come_back() -> None:
    with running(says("Hi."), access=Access(("a", "b"), requests_per_minute=2)) as server:
        with server.client("a") as gpt:
            for _ in range(2):
                gpt.chat.completions.create(**CHAT)
            with pytest.raises(openai.RateLimitError) as busy:
                gpt.chat.completions.create(**CHAT)
            assert busy.value.code == "rate_limit_exceeded"
            assert 1 <= int(busy.value.response.headers["retry-after"]) <= 31
            assert [one.id for one in gpt.models.list()] == [MODEL]
        with server.anthropic("a") as claude, pytest.raises(anthropic.RateLimitError):
            claude.messages.create(**MESSAGE)
        assert server.post(CHAT, Authorization="Bearer b").status_code == 200
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_rates_fill_up_again_and_the_table_of_callers_is_bounded() -> None:
    now_s = 0.0
    gate = RateGate(app=None, requests_per_minute=60, keyed=False, clock=lambda: now_s)  # type: ignore[arg-type]

    def wait_s(caller: str) -> int:
        return gate._wait_s({"type": "http", "method": "POST", "client": (caller, 1)})

    assert [wait_s("a") for _ in range(61)] == [0] * 60 + [1]
    now_s = 2.5
    assert [wait_s("a") for _ in range(3)] == [0, 0, 1]
    for number in range(MAX_CALLERS + 50):
        wait_s(str(number))
    assert len(gate._callers) == MAX_CALLERS


def test_a_web_page_of_a_named_origin_may_ask() -> None:
    page = "https://chat.example"
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    with running(says("Hi."), access=Access(("k",), origins=(page,))) as server:
        url = f"{server.url}/v1/chat/completions"
        preflight = httpx.options(url, headers={"Origin": page, **asks})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == page
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        answer = server.post({**CHAT, "stream": True}, Origin=page, Authorization="Bearer k")
        assert answer.headers["access-control-allow-origin"] == page
        assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
        refused = server.post(CHAT, Origin=page)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, page)
        stranger = httpx.options(url, headers={"Origin": "https://evil.example", **asks})
        assert "access-control-allow-origin" not in stranger.headers
    with running(says("Hi."), access=Access(origins=("*",))) as server:
        assert server.post(CHAT, Origin="https://any.example").headers["access-control-allow-origin"] == "*"
    with running(says("Hi.")) as server:
        assert "access-control-allow-origin" not in server.post(CHAT, Origin=page).headers


def test_a_body_that_does_not_come_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider.api.body, "BODY_WITHIN_S", 0.2)
    with running(says("Hi.")) as server, server.connect() as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        body = body or connection.recv(65536)
        assert json.loads(body)["error"]["code"] == "request_timeout"


def test_a_client_that_stops_reading_loses_its_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider.api.stream, "WRITE_WITHIN_S", 0.3)

    async def torrent(request: GenerationRequest) -> AsyncGenerator[Event]:
        while True:
            yield Delta(request.request_id, [1], "a" * 100_000)
            await asyncio.sleep(0)

    with running(torrent) as server, server.connect() as connection:
        content = json.dumps({**CHAT, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        until(lambda: bool(server.serving.requests))
        until(lambda: not server.serving.alive, timeout_s=20)
        assert httpx.get(f"{server.url}/health").status_code == 200
