"""What no route of the coordinator foresaw is an answer in the form of the API that was called."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from coordinator.api.requests import Requests


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("secret")


def answer(path: str, **headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody asks")

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "app": SimpleNamespace(state=SimpleNamespace()),
    }
    asyncio.run(Requests(fails)(scope, receive, send))
    start, body = sent
    told = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], told, json.loads(body["body"])


@pytest.mark.parametrize(
    ("path", "headers", "anthropic"),
    [
        ("/v1/chat/completions", {}, False),
        ("/v1/messages", {}, True),
        ("/v1/models", {}, False),
        ("/v1/models", {"anthropic_version": "2023-06-01"}, True),
        ("/v1/fleet", {"anthropic_version": "2023-06-01"}, False),
    ],
)
def test_it_has_its_form_and_its_id(path: str, headers: dict[str, str], anthropic: bool) -> None:
    status, told, body = answer(path, x_request_id="mine-1", **headers)
    assert (status, told["x-request-id"]) == (500, "mine-1")
    assert ("request-id" in told) == anthropic
    assert body.get("type") == ("error" if anthropic else None)
    assert body["error"]["code"] == "internal_error"
    assert "secret" not in json.dumps(body)
