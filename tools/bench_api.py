"""What the API costs beside the model: detokenising, taking an answer apart, and writing its events, per token.

    python -m tools.bench_api [--streams 64] [--tokens 1000] [--served] [--json]

All streams take turns token by token, so that nothing is gained from a run of one. `--served` also serves that many
streams of the `sim` backend over HTTP and tells the processor time of the whole parent process, sockets included.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil

from provider.api.events import events_of
from provider.api.job import Job, Origin
from provider.api.jobs import JOBS
from provider.bench.local_server import local_server
from provider.generation import Delta, Finished
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.tokenizer import ModelTokenizer
from provider.text import TextStream

TOKENIZER = ModelTokenizer(BUNDLED_MODEL_DIR)
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
PROSE = "The capital of France is Paris, and 17 plus 25 is 42; naïve ones say otherwise. "
CODE = 'def count(first: int) -> list[int]:\n    """Up to 99."""\n    return [*range(first, 100)]\n'
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
NAMED = {"name": "write_file"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {**NAMED, "parameters": SCHEMA}}],
    },
    COMPLETIONS: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi", "tools": [{"type": "function", **NAMED, "parameters": SCHEMA}]},
    MESSAGES: {
        "max_tokens": 100_000,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{**NAMED, "input_schema": SCHEMA}],
    },
}


def xml(text: str) -> str:
    return f"<tool_call>\n<function=write_file>\n<parameter=content>\n{text}"


def hermes(text: str) -> str:
    return f'<tool_call>\n{{"name": "write_file", "arguments": {{"content": {json.dumps(text)}'


ANSWERS: dict[str, Callable[[int], str]] = {
    "text": lambda tokens: PROSE * tokens,
    "thought": lambda tokens: "<think>\n" + PROSE * tokens,
    "call in XML": lambda tokens: xml(CODE * tokens),
    "call in JSON": lambda tokens: hermes(CODE * tokens),
}


class Model:
    """What a job asks of a model."""

    id = BUNDLED_MODEL_ID
    n_ctx = 1_000_000
    vocab_size = 1024
    tokenizer = TOKENIZER


class Stream:
    """One answer on its way from tokens to bytes."""

    def __init__(self, path: str) -> None:
        origin = Origin("r", Model(), time.time, Random(1))
        self._job: Job = JOBS[path]({"model": BUNDLED_MODEL_ID, "stream": True, **BODIES[path]}, origin)
        self._events = events_of(path)
        self.text = TextStream(TOKENIZER.decode, ["never to be seen"], reading=self._job.requests[0].reading)
        self.sent = 0

    def push(self, token_id: int) -> None:
        pushed = self.text.push([token_id])
        for chunk in self._job.translation.delta(0, Delta("r-0", [token_id], pushed.text)):
            self.sent += len(self._events.chunk(chunk))

    def finish(self, tokens: int) -> None:
        for chunk in self._job.translation.finished(0, Finished("r-0", "length", 1, tokens)):
            self.sent += len(self._events.chunk(chunk))


def measure(path: str, answer: str, streams: int, tokens: int) -> dict[str, Any]:
    """Microseconds of processor time per token of each stream."""
    ids = TOKENIZER.encode(ANSWERS[answer](tokens // 8))[:tokens]
    playing = [Stream(path) for _ in range(streams)]
    whole_us = _timed(lambda: _play(playing, ids)) / (streams * len(ids))
    texts = [Stream(path).text for _ in range(streams)]
    text_us = _timed(lambda: [text.push([one]) for one in ids for text in texts]) / (streams * len(ids))
    return {"path": path, "answer": answer, "us_per_token": whole_us, "of_which_detokenising": text_us}


def _play(playing: list[Stream], ids: list[int]) -> None:
    for one in ids:
        for stream in playing:
            stream.push(one)
    for stream in playing:
        stream.finish(len(ids))


def _timed(run: Callable[[], object]) -> float:
    """Microseconds of this process."""
    began = time.process_time()
    run()
    return 1e6 * (time.process_time() - began)


def measure_served(streams: int, tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="darkbloom-bench-") as scratch:
        arguments = ("--model", BUNDLED_MODEL_ID, "--backend", "sim", "--max-concurrent", str(streams))
        with local_server(arguments, {}, Path(scratch)) as url:
            [model] = httpx.get(f"{url}/props").json()["models"]
            parent = psutil.Process(model["worker_pid"]).parent()
            assert parent is not None
            before = sum(parent.cpu_times()[:2])
            asyncio.run(_ask(url, streams, tokens))
            spent = sum(parent.cpu_times()[:2]) - before
    return {"path": CHAT, "answer": "served by sim, parent process", "us_per_token": 1e6 * spent / (streams * tokens)}


async def _ask(url: str, streams: int, tokens: int) -> None:
    body = {"model": BUNDLED_MODEL_ID, "stream": True, "ignore_eos": True, "max_tokens": tokens, **BODIES[CHAT]}
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=streams)) as client:

        async def one() -> None:
            async with client.stream("POST", url + CHAT, json=body) as response:
                response.raise_for_status()
                async for _ in response.aiter_raw():
                    pass

        async with asyncio.TaskGroup() as tasks:
            for _ in range(streams):
                tasks.create_task(one())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    results = [
        measure(path, answer, told.streams, told.tokens)
        for path in BODIES
        for answer in ANSWERS
        if path != COMPLETIONS or answer == "text"
    ]
    if told.served:
        results.append(measure_served(told.streams, min(told.tokens, 500)))
    if told.json:
        print(json.dumps(results))
        return
    for one in results:
        rest = f" ({one['of_which_detokenising']:.1f} detokenising)" if "of_which_detokenising" in one else ""
        print(f"{one['path']:22} {one['answer']:30} {one['us_per_token']:6.1f} us/token{rest}")


if __name__ == "__main__":
    main()
