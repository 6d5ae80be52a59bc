"""What a slot counts is what its engine has generated, and what its clients are told."""

import asyncio
from typing import Any

import pytest

from provider.generation import Finished, GenerationRequest, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.pipe import Command, Loaded, LoadSpec, Report, Submit
from provider.runner import OnReport
from provider.slot import ModelSlot, SlotLimits
from tests.unit.provider.test_engine import Engines, alone

LOADED = Loaded(
    n_ctx=512,
    pool_tokens=1000,
    vocab_size=64,
    weight_bytes=1,
    kv_bytes_per_token=2,
    state_bytes=1,
    device="sim",
    load_s=0.0,
)


class HereRunner:
    """Implements provider.runner.Runner: an engine in this process, stepped as it is told to."""

    pid = None

    def __init__(self) -> None:
        self._engines = Engines()
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        self._on_report = on_report
        return LOADED

    def send(self, command: Command) -> None:
        if isinstance(command, Submit):
            self._engines.note(self._engines.engine.submit(command.request))

    def step(self) -> bool:
        """Whether there is more to do."""
        said = self._engines.engine.step(lambda events: self._on_report(Report(list(events))))
        self._on_report(Report(list(said.events), state=None))
        return self._engines.engine.busy

    async def wait_ended(self) -> str:
        return await self._ended

    async def stop(self, grace_s: float = 5.0) -> None:
        self._ended.cancel()

    def kill(self) -> None:
        pass


def totals(**fields: Any) -> tuple[int, int]:
    """What the slot has counted after one answer, and what the answer's usage says."""

    async def scene() -> tuple[int, int]:
        runners: list[HereRunner] = []

        def create() -> HereRunner:
            runners.append(HereRunner())
            return runners[-1]

        spec = LoadSpec(backend="sim", directory="", max_concurrent=8)
        slot = ModelSlot("m", ModelTokenizer(BUNDLED_MODEL_DIR), spec, SlotLimits(8, 8), create)
        await slot.start()
        try:
            told = {"max_tokens": 10, "sampling": Sampling(temperature=0), **fields}
            events = slot.generate(GenerationRequest(request_id="a", prompt=[1, 2, 3], **told))
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            while runners[0].step():
                pass
            said = [await first] + [event async for event in events]
            [end] = [event for event in said if isinstance(event, Finished)]
            return slot.totals.tokens, end.completion_tokens
        finally:
            await slot.stop()

    return asyncio.run(scene())


@pytest.mark.parametrize("end", ["length", "stop token", "stop string"])
def test_every_token_of_an_answer_is_counted_the_one_that_ends_it_too(end: str) -> None:
    whole = alone(max_tokens=10)
    tokens, text = whole.tokens("a"), whole.text("a")
    fields: dict[str, Any] = {
        "length": {},
        "stop token": {"stop_token_ids": [tokens[4]]},
        "stop string": {"stop": [text[3:5]]},
    }[end]
    generated = {"length": 10, "stop token": tokens.index(tokens[4]) + 1, "stop string": text.index(text[3:5]) + 2}
    counted, told = totals(**fields)
    assert counted == told == generated[end]
