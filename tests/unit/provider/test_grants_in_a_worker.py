"""A grant as the worker meets it: a shrink parks what lies beyond it and is told once that has been freed."""

from typing import Any

from provider.api.wire import Failure
from provider.building import build
from provider.generation import Event, Failed, Finished, GenerationRequest, Notice, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.pipe import Cancel, FromWorker, Grant, Granted, LoadSpec, Report, Submit
from provider.worker import apply, run_step

BLOCK = 256
FLOOR = 1 << 20
"""Of activations: what is asked of the allocator is not what these tests are about."""


class Worker:
    """A worker without its process: commands in, reports out."""

    def __init__(self, blocks: int) -> None:
        spec = LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=8, kv_pool_bytes=1 << 40)
        self.engine, self.loaded = build(spec)
        self.said: list[FromWorker] = []
        assert self.grant(1, blocks) == [True]
        self.said.clear()

    def bytes_of(self, blocks: int) -> int:
        return blocks * (self.loaded.state_bytes + BLOCK * self.loaded.kv_bytes_per_token)

    def grant(self, epoch: int, blocks: int) -> list[bool]:
        """What was answered at once."""
        asked = Grant(epoch=epoch, kv_pool_bytes=self.bytes_of(blocks), activation_reserve_bytes=FLOOR)
        answers = apply(self.engine, asked)
        self.said += answers
        return [one.accepted for one in answers if isinstance(one, Granted)]

    def submit(self, id: str, prompt_tokens: int, max_tokens: int, **more: Any) -> None:
        request = GenerationRequest(
            request_id=id, prompt=[7] * prompt_tokens, max_tokens=max_tokens, sampling=Sampling(temperature=0), **more
        )
        self.said += apply(self.engine, Submit(request))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            run_step(self.engine, self.said.append)

    def granted(self) -> list[Granted]:
        return [one for one in self.said if isinstance(one, Granted)]

    def events(self) -> list[Event]:
        return [event for one in self.said if isinstance(one, Report) for event in one.events]


def test_a_shrink_is_told_once_what_lies_beyond_it_has_been_parked() -> None:
    worker = Worker(blocks=4)
    for id in ("a", "b", "c"):
        worker.submit(id, 100, 80)
    worker.step(8)
    assert worker.engine.scheduler.counts().running == 3
    assert worker.grant(2, 1) == [], "not yet: three chats are inside"
    worker.step()
    assert [(one.epoch, one.accepted) for one in worker.granted()] == [(2, True)]
    assert worker.engine.scheduler.counts().running == 1
    assert sum(isinstance(event, Notice) and event.kind == "preempted" for event in worker.events()) == 2
    while worker.engine.busy:
        worker.step()
    assert sum(isinstance(event, Finished) for event in worker.events()) == 3
    assert len(worker.granted()) == 1, "told once"


def test_a_shrink_in_which_an_open_chat_could_not_end_is_refused_and_changes_nothing() -> None:
    worker = Worker(blocks=4)
    worker.submit("a", 100, 500)
    worker.step(3)
    before = worker.engine.scheduler.pool
    assert worker.grant(2, 1) == [False]
    assert worker.engine.scheduler.pool == before
    worker.said += apply(worker.engine, Cancel("a"))
    assert worker.grant(3, 1) == [True]
    assert worker.engine.scheduler.n_ctx == BLOCK


def test_an_older_push_that_comes_late_changes_nothing_and_says_nothing() -> None:
    worker = Worker(blocks=4)
    assert worker.grant(5, 3) == [True]
    before = worker.engine.scheduler.pool
    for epoch in (4, 5):
        assert worker.grant(epoch, 1) == []
        assert worker.engine.scheduler.pool == before


def test_what_can_no_longer_fit_is_refused_with_the_room_there_is_now() -> None:
    worker = Worker(blocks=4)
    worker.grant(2, 1)
    worker.submit("a", BLOCK + 1, 5)
    (failed,) = worker.events()
    assert isinstance(failed, Failed)
    failure: Failure = failed.failure
    assert (failure.status, failure.detail["n_ctx"]) == (400, BLOCK)
