"""The HTTP API of a scripted provider on a real socket, for tests."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import anthropic
import httpx
import openai
import uvicorn

from provider.api.app import create_app
from tests.fixtures.api_serving import TOKENIZER, QuietStatus, Script, ScriptedServing
from tests.integration.processes import NO_TLS


@dataclass(frozen=True)
class Running:
    """A server of a scripted provider."""

    serving: ScriptedServing
    status: QuietStatus
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, api_key: str = "none", strict: bool = True) -> openai.OpenAI:
        """`strict`: every answer must be what its type says."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=api_key,
            max_retries=0,
            timeout=10,
            http_client=openai.DefaultHttpxClient(verify=NO_TLS),
            _strict_response_validation=strict,
        )

    def anthropic(self, api_key: str = "none") -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=self.url,
            api_key=api_key,
            max_retries=0,
            timeout=10,
            http_client=anthropic.DefaultHttpxClient(verify=NO_TLS),
            _strict_response_validation=True,
        )

    def prompt_of(self, number: int) -> str:
        """The text of a request's prompt, control tokens and all."""
        return TOKENIZER.decode(self.serving.requests[number].prompt, skip_special_tokens=False)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, headers=headers, timeout=30, verify=NO_TLS)


@contextmanager
def running(script: Script, **options: Any) -> Iterator[Running]:
    serving, status = ScriptedServing(script), QuietStatus()
    app = create_app(serving, status, random=Random(1), **options)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield Running(serving, status, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()
        assert not serving.alive


def until(true: Callable[[], bool], timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)
