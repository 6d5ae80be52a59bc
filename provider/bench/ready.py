"""A server whose answers are ready: what asking costs at the least. `python -m provider.bench.ready --port PORT`."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from provider import collector
from provider.http_server import bind, server_for
from provider.lifetime import Lifetime


async def complete(request: Request) -> Response:
    """As many pieces of a streamed /v1/completions as tokens are asked for, all at once."""
    tokens = (await request.json())["max_tokens"]
    pieces = [{"choices": [{"index": 0, "text": "a", "finish_reason": None}]}] * tokens
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}}
    events = [f"data: {one}\n\n" for one in (*map(json.dumps, [*pieces, usage]), "[DONE]")]

    async def streamed() -> AsyncIterator[str]:
        for event in events:
            yield event

    return StreamingResponse(streamed(), media_type="text/event-stream")


async def health(request: Request) -> Response:
    return Response("ok")


async def _serve(port: int, parent_fd: int | None) -> None:
    lifetime = Lifetime(parent_fd)
    app = Starlette(routes=[Route("/health", health), Route("/v1/completions", complete, methods=["POST"])])
    server = server_for(app)
    with bind("127.0.0.1", port) as sock:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        collector.freeze()
        await lifetime.ending.wait()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exit-when-closed", type=int)
    told = parser.parse_args()
    uvloop.run(_serve(told.port, told.exit_when_closed))
