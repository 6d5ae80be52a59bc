"""A real worker process behind its slot: who survives what."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from provider.cool_off import FIRST_S
from provider.errors import ModelError, RequestFailed
from provider.generation import Delta, Finished, Notice
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.parking.knobs import ParkSpec
from provider.runner import InlineRunner, ProcessRunner, Runner
from provider.slot import ModelSlot
from tests.integration.slots import ask, collect, demo_slot

LONG = 2000
Loop = asyncio.Runner
Play = Callable[[ModelSlot], Awaitable[None]]


def scene(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 120))


@contextlib.contextmanager
def shared(**spec: Any) -> Iterator[Callable[[Play], None]]:
    """A slot that several tests use in turn, each on the loop that it lives on."""
    with Loop() as loop:
        entered = demo_slot(**spec)
        slot = loop.run(entered.__aenter__())

        def use(play: Play) -> None:
            loop.run(asyncio.wait_for(play(slot), 120))
            assert slot.open == 0

        try:
            yield use
        finally:
            loop.run(entered.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def parks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parks")


@pytest.fixture(scope="module")
def roomy(parks: Path) -> Iterator[Callable[[Play], None]]:
    """Eight places."""
    with shared(park=ParkSpec(directory=str(parks))) as use:
        yield use


@pytest.fixture(scope="module")
def narrow() -> Iterator[Callable[[Play], None]]:
    """One place, and three to wait in."""
    with shared(max_concurrent=1, max_waiting=3) as use:
        yield use


async def begin(slot: ModelSlot, request_id: str) -> "asyncio.Task[tuple[str, int]]":
    """A long generation that has already sent something; returns how it ends: its code, its characters."""
    begun = asyncio.Event()

    async def run() -> tuple[str, int]:
        got = 0
        try:
            async for event in slot.generate(ask("Count from 1 to 9.", request_id, LONG)):
                got += len(event.text) if isinstance(event, Delta) else 0
                begun.set()
        except RequestFailed as failed:
            return failed.failure.code, got
        finally:
            begun.set()
        return "finished", got

    task = asyncio.create_task(run())
    await begun.wait()
    return task


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what the worker process does."""
    while not condition():  # noqa: ASYNC110  (there is no event to wait for: another process acts)
        await asyncio.sleep(0.005)


async def code_of(running: Awaitable[object]) -> str:
    try:
        await running
    except RequestFailed as failed:
        return failed.failure.code
    return "finished"


@pytest.mark.parametrize("create_runner", [ProcessRunner, InlineRunner])
def test_both_runners_give_the_same_tokens_in_company_and_alone(create_runner: Callable[[], Runner]) -> None:
    async def play() -> None:
        async with demo_slot(create_runner=create_runner) as slot:
            alone = [await collect(slot, ask(f"Count from {n} to 99.", f"a{n}", 8 + n)) for n in range(4)]
            company = await asyncio.gather(
                *(collect(slot, ask(f"Count from {n} to 99.", f"b{n}", 8 + n)) for n in range(4))
            )
            assert [text for text, _, _ in alone] == [text for text, _, _ in company]
            assert alone[3][0].startswith("3, 4, 5")

    scene(play)


def test_a_worker_is_another_process_and_ends_with_its_slot() -> None:
    async def play() -> None:
        async with demo_slot() as slot:
            assert slot.pid is not None
            assert slot.pid != os.getpid()
            worker = psutil.Process(slot.pid)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE

    scene(play)


def test_when_a_worker_is_killed_its_begun_streams_end_and_waiting_requests_are_served_by_the_next(
    narrow: Callable[[Play], None],
) -> None:
    async def play(slot: ModelSlot) -> None:
        running = await begin(slot, "running")
        waiting = [asyncio.create_task(collect(slot, ask("Count from 3 to 9.", f"w{n}", 8))) for n in range(3)]
        await asyncio.sleep(0)
        assert slot.pid is not None
        killed, restarts = slot.pid, slot.totals.restarts
        os.kill(killed, signal.SIGKILL)
        code, characters = await running
        assert code == "worker_died"
        assert characters > 0
        assert [text for text, _, _ in await asyncio.gather(*waiting)] == ["3, 4, 5,"] * 3
        assert slot.pid != killed
        assert slot.totals.restarts == restarts + 1

    narrow(play)


def test_a_worker_that_hangs_is_replaced() -> None:
    async def play() -> None:
        async with demo_slot(hang_s=1.0) as slot:
            running = await begin(slot, "running")
            assert slot.pid is not None
            os.kill(slot.pid, signal.SIGSTOP)
            assert (await running)[0] == "worker_died"
            assert (await collect(slot, ask("Count from 3 to 9.", "next", 8)))[0] == "3, 4, 5,"

    scene(play)


def test_a_slot_whose_worker_keeps_dying_fails_and_says_so_and_serves_again_once_it_has_cooled_off() -> None:
    async def play() -> None:
        slept_s = 0.0
        async with demo_slot(clock=lambda: time.monotonic() + slept_s) as slot:
            deaths = 0
            while slot.status != "failed":
                if slot.status == "ready" and slot.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(slot.pid, signal.SIGKILL)
                        deaths += 1
                await asyncio.sleep(0.01)
            assert deaths >= 4
            with pytest.raises(RequestFailed) as refused:
                await collect(slot, ask("hi", "late"))
            told = refused.value.failure
            assert (told.status, told.code) == (503, "slot_state")
            assert 1 <= (told.retry_after_s or 0) <= FIRST_S
            assert "its worker keeps dying (" in told.message
            assert "signal 9" in told.message
            slept_s = FIRST_S
            assert slot.status == "unloaded"
            await slot.start()
            assert (await collect(slot, ask("Count from 3 to 9.", "again", 8)))[0] == "3, 4, 5,"

    scene(play)


def test_a_request_that_kills_every_worker_is_not_tried_for_ever() -> None:
    async def play() -> None:
        async with demo_slot() as slot:
            # Its prompt is long enough to be in prefill when the worker is killed.
            request = ask("x " * 1500, "poison")
            task = asyncio.create_task(code_of(collect(slot, request)))
            for _ in range(2):
                await until(lambda: slot.status == "ready" and slot.engine.prefill > 0)
                assert not task.done()
                assert slot.pid is not None
                os.kill(slot.pid, signal.SIGKILL)
                await until(lambda: slot.status != "ready")
            assert await task == "worker_died"
            assert (await collect(slot, ask("Count from 3 to 9.", "next", 8)))[0] == "3, 4, 5,"

    scene(play)


def test_leaving_a_stream_frees_its_row(narrow: Callable[[Play], None]) -> None:
    async def play(slot: ModelSlot) -> None:
        async for event in slot.generate(ask("Count from 1 to 9.", "left", LONG)):
            if isinstance(event, Delta):
                break
        # The only place is free again, or this would wait for 2000 tokens.
        async with asyncio.timeout(20):
            assert (await collect(slot, ask("Count from 3 to 9.", "next", 8)))[0] == "3, 4, 5,"
        assert slot.open == 0

    narrow(play)


def test_a_full_waiting_room_refuses_with_a_time_to_come_back(narrow: Callable[[Play], None]) -> None:
    async def play(slot: ModelSlot) -> None:
        running = await begin(slot, "running")
        waiting = [asyncio.create_task(collect(slot, ask("Count from 3 to 9.", f"w{n}", 8))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RequestFailed) as refused:
            await collect(slot, ask("Count from 3 to 9.", "refused", 8))
        assert refused.value.failure.status == 429
        assert (refused.value.failure.retry_after_s or 0) >= 1
        running.cancel()
        assert [text for text, _, _ in await asyncio.gather(*waiting)] == ["3, 4, 5,"] * 3

    narrow(play)


def test_two_chats_in_a_pool_for_one_both_finish_as_if_alone() -> None:
    async def play() -> None:
        async with demo_slot(kv_pool_tokens=110) as slot:
            assert slot.n_ctx == 110
            alone = [await collect(slot, ask(f"Count from {n} to 99.", f"a{n}", 60)) for n in (1, 2)]
            together = await asyncio.gather(
                *(collect(slot, ask(f"Count from {n} to 99.", f"b{n}", 60)) for n in (1, 2))
            )
            assert [tokens for _, tokens, _ in together] == [tokens for _, tokens, _ in alone]
            assert [end.parks for _, _, end in together] == [0, 1]

    scene(play)


@pytest.mark.parametrize("broken", ["empty", "truncated", "other family"])
def test_a_model_that_cannot_be_loaded_is_a_clear_error(broken: str, tmp_path: Path) -> None:
    if broken != "empty":
        for file in BUNDLED_MODEL_DIR.iterdir():
            if file.is_file():
                (tmp_path / file.name).write_bytes(file.read_bytes())
    if broken == "truncated":
        shard = next(tmp_path.glob("model-*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:1000])
    if broken == "other family":
        config = tmp_path / "config.json"
        config.write_text(config.read_text().replace('"qwen3_5"', '"mamba"'))

    async def play() -> None:
        with pytest.raises(ModelError, match=str(tmp_path)):
            async with demo_slot(tmp_path):
                pass

    scene(play)


def test_a_request_that_cannot_be_sent_leaves_nothing_behind(roomy: Callable[[Play], None]) -> None:
    async def play(slot: ModelSlot) -> None:
        with pytest.raises(OverflowError):
            await collect(slot, ask("Count from 3 to 9.", "huge", 2**70))
        assert slot.open == 0
        assert (await collect(slot, ask("Count from 3 to 9.", "next", 8)))[0] == "3, 4, 5,"

    roomy(play)


def files_in(directory: Path) -> int:
    return len(list(directory.iterdir()))


def test_a_held_chat_frees_its_memory_and_says_afterwards_what_it_says_unheld(
    roomy: Callable[[Play], None], parks: Path
) -> None:
    """On a real worker: its state is copied to a file, and measured to be gone."""

    async def play(slot: ModelSlot) -> None:
        request = ask("Count from 1 to 99.", "held", 120)
        expected, _, _ = await collect(slot, ask("Count from 1 to 99.", "alone", 120))
        text, notices = "", list[str]()
        full = slot.engine.active_bytes
        async with contextlib.aclosing(slot.generate(request)) as events:
            async for event in events:
                match event:
                    case Delta():
                        text += event.text
                    case Notice("held", "preempt-keepalive"):
                        pass
                    case Notice(_, kind):
                        notices.append(kind)
                    case Finished():
                        end = event
                if len(text) > 20 and "preempted" not in notices and not slot.engine.parked:
                    full = max(full, slot.engine.active_bytes)
                    slot.hold("held", True)
                if notices == ["preempted"]:
                    await until(lambda: slot.engine.parked == 1 and slot.engine.moving == 0)
                    assert (slot.engine.running, slot.engine.tokens_used) == (0, 0)
                    assert slot.loaded is not None
                    assert slot.engine.active_bytes <= full - slot.loaded.state_bytes
                    assert files_in(parks) == 1
                    slot.hold("held", False)
                    notices.append("let go")
        assert (text, notices) == (expected, ["preempted", "let go", "resumed"])
        assert (end.parks, end.recomputes) == (1, 0)

    roomy(play)
