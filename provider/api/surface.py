"""One generation request, from its body to the items of its answer, whatever carries them.

The HTTP app and the coordinator link both enter here.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, assert_never

import msgspec

from provider.api.job import Job, Origin, new_id
from provider.api.jobs import JOBS
from provider.api.translation import Chunk as ChunkData
from provider.api.wire import Failure, internal_error, invalid_request, nested_too_deeply, wrong_model
from provider.errors import RequestFailed
from provider.generation import Delta, Finished, GenerationRequest, Notice, Serving
from provider.grammar.sandbox import Sandbox

NoticeKind = Literal["preempted", "preempt-keepalive", "resumed", "recomputed"]

MERGE_EVENTS = 64
"""How far the sequences of one request may run ahead of its reader."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One `data:` payload of the stream, and how many tokens the answer has come to with it."""

    data: dict[str, Any]
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class NoticeItem:
    kind: NoticeKind


@dataclass(frozen=True, slots=True)
class Complete:
    """The last item. `body` is the whole object of a request that does not stream, else None."""

    body: dict[str, Any] | None
    usage: dict[str, Any]
    parks: int
    recomputes: int


Item = Chunk | NoticeItem | Complete
SequenceEvent = tuple[int, Delta | Notice | Finished]


class Surface:
    """`clock` tells Unix seconds. `random` draws ids and the seeds of requests that name none."""

    def __init__(self, serving: Serving, clock: Callable[[], float], random: Random) -> None:
        self._serving = serving
        self._clock = clock
        self._random = random
        self._sandbox = Sandbox()

    async def open(self, endpoint: str, body: dict[str, Any], request_id: str | None = None) -> "Answer":
        """Nothing is generated before `Answer.items` is iterated.

        `endpoint` is the path, `request_id` names the request in the engine and must be unique among those
        alive. Raises RequestFailed for a request that cannot be served.
        """
        job_of = JOBS.get(endpoint)
        if job_of is None:
            raise RequestFailed(Failure(404, "invalid_request_error", "not_found", f"No such API: {endpoint}."))
        model = self._serving.model(_model_id(body))
        origin = Origin(
            request_id or new_id("req-", self._random), model, self._clock, self._random, self._sandbox.check
        )
        # A long prompt takes long to encode: the streams of others must not wait for it.
        return Answer(self._serving, await asyncio.to_thread(_prepared, job_of, body, origin))


class Answer:
    """An answer not yet begun. Iterate `items` once, in `aclosing`: leaving it cancels every sequence."""

    def __init__(self, serving: Serving, job: Job) -> None:
        self._serving = serving
        self._job = job

    @property
    def streaming(self) -> bool:
        return self._job.streaming

    def empty_chunk(self) -> dict[str, Any]:
        """What a notice looks like to clients that cannot bear comments."""
        return self._job.translation.empty_chunk()

    def hold(self, held: bool) -> None:
        """While `held`, nothing more is generated: whoever iterates cannot take it."""
        for request in self._job.requests:
            self._serving.hold(self._job.model_id, request.request_id, held)

    async def items(self) -> AsyncGenerator[Item]:
        """Ends with `Complete`. Raises RequestFailed, before the first item for a refusal."""
        translation, drawn = self._job.translation, 0
        async with self._events() as events:
            async for index, event in events:
                if isinstance(event, Notice):
                    yield NoticeItem(event.kind)
                    continue
                if isinstance(event, Delta):
                    drawn += len(event.token_ids)
                for data in self._translated(index, event):
                    if self.streaming:
                        yield Chunk(data, translation.tally.prompt_tokens, drawn)
        if self.streaming and self._job.include_usage:
            yield Chunk(translation.usage_chunk(), translation.tally.prompt_tokens, drawn)
        tally = translation.tally
        body = None if self.streaming else translation.whole()
        yield Complete(body, tally.usage(), tally.parks, tally.recomputes)

    def _translated(self, index: int, event: Delta | Finished) -> list[ChunkData]:
        match event:
            case Delta():
                return self._job.translation.delta(index, event)
            case Finished():
                return self._job.translation.finished(index, event)
            case _:
                assert_never(event)

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[SequenceEvent]]:
        """The events of all sequences, in the order in which they come."""
        requests = self._job.requests
        events = self._sequence(0, requests[0]) if len(requests) == 1 else self._merged()
        async with aclosing(events):
            yield events

    async def _sequence(self, index: int, request: GenerationRequest) -> AsyncGenerator[SequenceEvent]:
        async with aclosing(self._serving.generate(self._job.model_id, request)) as events:
            async for event in events:
                yield index, event
                if isinstance(event, Finished):
                    return
        raise RequestFailed(internal_error("The generation ended without a result."))

    async def _merged(self) -> AsyncGenerator[SequenceEvent]:
        ready: asyncio.Queue[SequenceEvent | Exception] = asyncio.Queue(MERGE_EVENTS)
        tasks = [
            asyncio.create_task(self._pump(index, request, ready.put))
            for index, request in enumerate(self._job.requests)
        ]
        try:
            unfinished = len(tasks)
            while unfinished:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                unfinished -= isinstance(item[1], Finished)
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self,
        index: int,
        request: GenerationRequest,
        put: Callable[[SequenceEvent | Exception], Awaitable[None]],
    ) -> None:
        """A failed sequence ends the whole answer: its exception is an item like another."""
        try:
            async with aclosing(self._sequence(index, request)) as events:
                async for event in events:
                    await put(event)
        except Exception as error:
            await put(error)


def _model_id(body: Mapping[str, Any]) -> str:
    model_id = body.get("model")
    if (failure := wrong_model(model_id)) is not None:
        raise RequestFailed(failure)
    return str(model_id)


def _prepared(job_of: Callable[[Mapping[str, Any], Origin], Job], body: Mapping[str, Any], origin: Origin) -> Job:
    try:
        # Whatever carried it: a lone surrogate has no bytes, and fails in every later encoder.
        msgspec.json.encode(body)
        return job_of(body, origin)
    except RecursionError:
        raise RequestFailed(nested_too_deeply()) from None
    except UnicodeEncodeError:
        raise RequestFailed(invalid_request("The body holds text that is not valid Unicode.")) from None
