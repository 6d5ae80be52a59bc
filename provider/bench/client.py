"""Asks an OpenAI-compatible server what a load says and notes when each piece of its answers came."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, assert_never

import httpx

from provider import collector
from provider.bench.load import ClosedLoop, Load, OpenLoop, Planned
from provider.bench.prompts import PromptStyle, TokenIds, Words, words
from provider.bench.report import Answer, Outcome, Unanswered
from provider.errors import DarkbloomError

COMPLETIONS = "/v1/completions"
PROBE_WORDS = 64
ANSWER_S = 600.0
"""The longest silence within an answer: a slow machine's prefill of a long prompt."""


class BenchError(DarkbloomError):
    """The server cannot be measured; says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a server and how it is asked. `extra` goes into every body: sampling, extensions."""

    url: str
    model: str
    extra: Mapping[str, Any]

    def body(self, prompt: str | list[int], output_tokens: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "max_tokens": output_tokens, **self.extra}


@asynccontextmanager
async def connected(url: str, api_key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """One connection for each request in flight; no proxy of the environment comes between."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(ANSWER_S, connect=10)
    async with httpx.AsyncClient(
        base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=timeout, trust_env=False
    ) as client:
        yield client


def get_json(url: str, api_key: str) -> Any:
    """What the server says there. Raises BenchError."""
    try:
        headers = {"Authorization": f"Bearer {api_key}"}
        return httpx.get(url, headers=headers, timeout=30, trust_env=False).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise BenchError(f"{url} cannot be asked: {error!r}") from error


async def first_model(client: httpx.AsyncClient) -> str:
    """The id of the first model the server lists."""
    try:
        answer = await client.get("/v1/models")
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise BenchError(f"{client.base_url} lists no model ({error!r}): name one with --model.") from error


async def prompt_style(client: httpx.AsyncClient, target: Target) -> PromptStyle:
    """Token ids where the server takes them, and text where it does not. Also the first thing it has to answer."""
    if (await _ask(client, target.body(TokenIds().make(16, seed=0), 1))).is_success:
        return TokenIds()
    answer = await _ask(client, target.body(words(PROBE_WORDS, seed=0), 1))
    if not answer.is_success:
        raise BenchError(f"{client.base_url} answers {answer.status_code}: {answer.text[:500]}")
    try:
        return Words(answer.json()["usage"]["prompt_tokens"] / PROBE_WORDS)
    except (ValueError, LookupError, TypeError) as error:
        raise BenchError(f"{client.base_url} does not say how many tokens a prompt has: {answer.text[:200]}") from error


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    try:
        return await client.post(COMPLETIONS, json=body)
    except httpx.HTTPError as error:
        raise BenchError(f"{client.base_url} cannot be asked: {error!r}") from error


async def run_load(
    client: httpx.AsyncClient,
    target: Target,
    load: Load,
    style: PromptStyle,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Outcome]:
    """The outcome of every request, in the order of the load."""
    collector.freeze()  # a client's pauses are not the server's
    outcomes: dict[int, Outcome] = {}

    async def ask(planned: Planned) -> None:
        prompt = style.make(planned.prompt_tokens, planned.seed)
        body = target.body(prompt, planned.output_tokens)
        outcomes[planned.number] = await stream_answer(client, body, planned, clock)

    match load.arrivals:
        case ClosedLoop(streams):
            waiting = iter(load.requests)

            async def one_stream() -> None:
                for planned in waiting:
                    await ask(planned)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(streams):
                    tasks.create_task(one_stream())
        case OpenLoop():
            started = clock()
            async with asyncio.TaskGroup() as tasks:
                for planned, at_s in zip(load.requests, load.times_s(), strict=True):
                    await asyncio.sleep(max(0.0, started + at_s - clock()))
                    tasks.create_task(ask(planned))
        case _:
            assert_never(load.arrivals)
    return [outcomes[planned.number] for planned in load.requests]


async def stream_answer(
    client: httpx.AsyncClient, body: Mapping[str, Any], planned: Planned, clock: Callable[[], float]
) -> Outcome:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = Streamed()
    sent_s = clock()
    try:
        async with client.stream("POST", COMPLETIONS, json=asked) as response:
            if not response.is_success:
                text = (await response.aread()).decode(errors="replace")
                return Unanswered(planned.number, f"status {response.status_code}: {text[:200]}")
            async for line in response.aiter_lines():
                answer.hear(line, clock())
    except httpx.HTTPError as error:
        return Unanswered(planned.number, repr(error))
    except ValueError as error:
        return Unanswered(planned.number, f"not a stream of JSON events: {error}")
    if answer.error is not None:
        return Unanswered(planned.number, answer.error)
    if not answer.done:
        return Unanswered(planned.number, "the stream ended without [DONE]")
    return answer.outcome(planned, sent_s, clock())


@dataclass(slots=True)
class Streamed:
    """What has been heard of one streamed answer. Owner: the task that reads it."""

    arrivals_s: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False

    def hear(self, line: str, at_s: float) -> None:
        """One line of the stream; comments and blank lines say nothing. Raises ValueError for what is no event."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event must be an object, not {data[:80]}")
        if event.get("error"):
            self.error = f"an error in the stream: {json.dumps(event['error'])[:200]}"
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            if choice.get("text"):
                self.arrivals_s.append(at_s)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def outcome(self, planned: Planned, sent_s: float, done_s: float) -> Answer:
        counted = self.usage.get("completion_tokens")
        return Answer(
            number=planned.number,
            asked_tokens=planned.output_tokens,
            sent_s=sent_s,
            arrivals_s=tuple(self.arrivals_s),
            done_s=done_s,
            prompt_tokens=self.usage.get("prompt_tokens"),
            output_tokens=len(self.arrivals_s) if counted is None else counted,
            counted="pieces" if counted is None else "usage",
            finish_reason=self.finish_reason,
        )
