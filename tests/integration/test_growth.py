"""Many requests through one worker: memory, arrays and file handles stay where they were."""

import asyncio
from random import Random

import psutil

from provider.slot import ModelSlot
from tests.integration.slots import ask, collect, demo_slot
from tests.soak import SOAK, examples

REQUESTS = examples(2000)
WARM_UP = 200 if SOAK else 20
CONCURRENT = 8
SLACK_BYTES = 32 * 2**20
"""Resident memory that may come and go with the allocator; a leak of one sequence per request would be 40 times it."""


def test_nothing_grows_with_the_number_of_requests() -> None:
    async def play() -> None:
        async with demo_slot() as slot:
            rng = Random(1)
            gate = asyncio.Semaphore(CONCURRENT)

            async def one(number: int) -> None:
                async with gate:
                    text = "word " * rng.randint(1, 40)
                    request = ask(text, str(number), max_tokens=rng.randint(1, 12))
                    if number % 5 == 0:  # a fifth of the clients leave at the first event
                        events = slot.generate(request)
                        await anext(events)
                        await events.aclose()
                    else:
                        await collect(slot, request)

            await asyncio.gather(*(one(number) for number in range(WARM_UP)))
            await settle(slot)
            assert slot.pid is not None
            worker = psutil.Process(slot.pid)
            resident, handles, threads = worker.memory_info().rss, worker.num_fds(), worker.num_threads()
            active = slot.engine.active_bytes
            own_handles = psutil.Process().num_fds()
            await asyncio.gather(*(one(WARM_UP + number) for number in range(REQUESTS)))
            await settle(slot)
            assert slot.open == 0
            assert slot.engine.active_bytes <= active + 2**16
            assert worker.num_fds() == handles
            assert worker.num_threads() == threads
            assert psutil.Process().num_fds() == own_handles
            assert worker.memory_info().rss <= resident + SLACK_BYTES

    asyncio.run(asyncio.wait_for(play(), 3600))


async def settle(slot: ModelSlot) -> None:
    """Lets the cancellations reach the worker: a short request behind them has been answered."""
    await collect(slot, ask("x", "settled", max_tokens=2))
    await slot.describe()
