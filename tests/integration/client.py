"""Clients of a running endpoint, for tests: the official SDK, plain requests, streams read in the background, and a
client that goes away without a word."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from tests.integration.processes import NO_TLS, until

MODEL = "darkbloom-demo"
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


def counting(first: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy chat whose answer goes on for as long as it is let."""
    message = {"role": "user", "content": f"Count from {first} to 99."}
    return {"model": MODEL, "messages": [message], "max_tokens": max_tokens, "temperature": 0, **more}


@dataclass(frozen=True, slots=True)
class Api:
    url: str
    key: str = "none"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def sdk(self) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(verify=NO_TLS)
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=60, http_client=http)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=10, verify=NO_TLS)

    def post(self, body: dict[str, Any] | bytes, path: str = CHAT) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, headers=self.headers, timeout=60, verify=NO_TLS)

    def error(self, body: dict[str, Any] | bytes, path: str = CHAT) -> tuple[int, dict[str, Any]]:
        """The status and the error object of a request that is refused."""
        answer = self.post(body, path)
        return answer.status_code, answer.json()["error"]

    def text(self, body: dict[str, Any]) -> str:
        answer = self.post(body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def states(self) -> list[str]:
        """Of the open sequences (GET /slots of a provider)."""
        return [one["state"] for one in self.get("/slots").json() if one["state"] != "idle"]

    @contextlib.contextmanager
    def vanishing(self, body: dict[str, Any], path: str = CHAT) -> Iterator[socket.socket]:
        """A client that has sent its request; at the end of the block it goes away without a word."""
        host, port = self.url.removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.encode() + content)
            yield connection


class Stream:
    """A streamed answer, read by a thread of its own. `broken`: how the connection ended, where not in order."""

    def __init__(self, api: Api, body: dict[str, Any]) -> None:
        self.status: int | None = None
        self.lines: list[str] = []
        self.broken: str | None = None
        self._request = (api.url + CHAT, api.headers, {**body, "stream": True})
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def begun(self) -> "Stream":
        """Waits for a first piece of text."""
        until(lambda: bool(self.text) or not self._thread.is_alive(), what="a first piece of text")
        assert self.text, (self.status, self.lines, self.broken)
        return self

    def ended(self, within_s: float = 60.0) -> "Stream":
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"the stream has not ended within {within_s} s: {self.lines[-3:]}"
        return self

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the events hold, [DONE] left out."""
        return [json.loads(line[6:]) for line in list(self.lines) if line.startswith("data: {")]

    @property
    def text(self) -> str:
        choices = [choice for event in self.events for choice in event.get("choices", [])]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    @property
    def error(self) -> dict[str, Any] | None:
        """Of the last event, if that is an error."""
        return self.events[-1].get("error") if self.events else None

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice["finish_reason"] for event in self.events for choice in event.get("choices", [])]
        return next((one for one in reasons if one), None)

    @property
    def done(self) -> bool:
        """Whether it has ended as a stream does, after an error too."""
        return bool(self.lines) and self.lines[-1] == "data: [DONE]" and self.broken is None

    def _read(self) -> None:
        url, headers, body = self._request
        try:
            with httpx.stream("POST", url, headers=headers, json=body, timeout=60, verify=NO_TLS) as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    if line:
                        self.lines.append(line)
        except httpx.HTTPError as error:
            self.broken = repr(error)
