"""What a slot counts is what its engine has generated, and what its clients are told."""

import asyncio
from typing import Any

import pytest

from provider.engine import Engine
from provider.generation import Finished, GenerationRequest, Notice, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.pipe import Command, Loaded, LoadSpec, Report, Stop
from provider.runner import OnReport
from provider.slot import ModelSlot, SlotLimits
from provider.telling import engine_state
from provider.worker import apply
from tests.unit.provider.test_engine import Engines, alone
from tests.unit.provider.test_engine_parking import Chats, HeldSim

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

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine or Engines().engine
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, spec: LoadSpec, on_report: OnReport) -> Loaded:
        self._on_report = on_report
        return LOADED

    def send(self, command: Command) -> None:
        if not isinstance(command, Stop):
            apply(self._engine, command)

    def step(self) -> bool:
        """Whether there is more to do."""
        said = self._engine.step(lambda events: self._on_report(Report(list(events))))
        self._on_report(Report(list(said.events), state=engine_state(self._engine)))
        return self._engine.busy

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


def test_a_chat_that_is_parked_again_while_it_is_computed_again_counts_twice_and_is_told_once() -> None:
    async def scene() -> None:
        runners: list[HereRunner] = []

        def create() -> HereRunner:
            runners.append(HereRunner(Chats(HeldSim(tiers=None), tokens=1000).engine))
            return runners[-1]

        spec = LoadSpec(backend="sim", directory="", max_concurrent=8)
        slot = ModelSlot("m", ModelTokenizer(BUNDLED_MODEL_DIR), spec, SlotLimits(8, 8), create)

        async def chat(parks: int) -> list[object]:
            """Each but the first comes before it has decoded again."""
            request = GenerationRequest(
                request_id="a", prompt=[1] * 50, max_tokens=10, sampling=Sampling(temperature=0)
            )
            events = slot.generate(request)
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            runners[-1].step()
            for _ in range(parks):
                for held in (True, False):
                    slot.hold("a", held)
                    runners[-1].step()
            while runners[-1].step():
                pass
            return [await first] + [event async for event in events]

        await slot.start()
        said = await chat(parks=2)
        assert [one.kind for one in said if isinstance(one, Notice)] == ["preempted", "resumed", "recomputed"]
        [end] = [one for one in said if isinstance(one, Finished)]
        assert (end.parks, end.recomputes) == (slot.totals.parks, slot.totals.recomputes) == (2, 2)
        await slot.stop()
        await slot.start()  # another worker, which counts from 0
        await chat(parks=1)
        assert (slot.totals.parks, slot.totals.recomputes) == (3, 3)
        await slot.stop()

    asyncio.run(scene())
