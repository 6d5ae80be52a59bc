"""Several real models in one provider: real workers, real memory, floors and limits set so that room is short."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from provider.config import read_config
from provider.errors import RequestFailed
from provider.generation import Delta, Finished, GenerationRequest
from provider.hardware import MemoryReader
from provider.memory.caps import GIB
from provider.models.bundled import BUNDLED_MODEL_ID
from provider.residency import Residency
from provider.system_memory import SystemMemory
from tests.fixtures.family_models import write_family
from tests.integration.slots import ask
from tests.soak import SOAK

MIB = 2**20
FLOOR_BYTES = 64 * MIB
CYCLES, WARM_UP = (50, 2) if SOAK else (2, 1)
"""Of loading and unloading."""
SLACK_BYTES = 24 * MIB


async def read_memory() -> SystemMemory:
    return await asyncio.to_thread(MemoryReader("host").read)


def residency_of(
    tmp_path: Path,
    *models: Path | str,
    limit_bytes: int | None = None,
    floors: dict[str, int] | None = None,
    **flags: Any,
) -> Residency:
    file = tmp_path / "provider.toml"
    limit = "" if limit_bytes is None else f"[provider]\nmemory_limit_gb = {limit_bytes / GIB:.6f}\n"
    file.write_text(limit + "[models]\npreload = []\n")
    named = tuple(map(str, models))
    config = read_config(flags, named, data_dir=tmp_path, file=file, env={})
    table = {Path(one).name: FLOOR_BYTES for one in named} if floors is None else floors
    physical = psutil.virtual_memory().total
    return Residency(config, physical, read_memory=read_memory, floors=table)


def play(residency: Residency, act: Callable[[Residency], Awaitable[None]], timeout_s: float = 120) -> None:
    async def run() -> None:
        await residency.start()
        try:
            await act(residency)
        finally:
            await residency.stop()

    asyncio.run(asyncio.wait_for(run(), timeout_s))


async def answer(residency: Residency, model: str, request: GenerationRequest) -> list[int]:
    tokens = list[int]()
    async for event in residency.generate(model, request):
        if isinstance(event, Delta):
            tokens += event.token_ids
    return tokens


def tiny(tmp_path: Path, name: str) -> Path:
    return write_family(tmp_path / name, "llama")


def write_hole(path: Path, size_bytes: int) -> None:
    """A weight file of that size that takes no room on the disk."""
    header = json.dumps({"more": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size_bytes)


def loaded(residency: Residency) -> set[str]:
    return {one.id for one in residency.occupancy.residents}


def test_two_models_answer_in_turn_and_the_idle_one_leaves_for_a_third(tmp_path: Path) -> None:
    first, second, third = tiny(tmp_path, "one"), tiny(tmp_path, "two"), BUNDLED_MODEL_ID

    async def measure(residency: Residency) -> None:
        await residency.load("one")
        sizes.append(residency.occupancy.residents[0].slot.weight_bytes)

    sizes: list[int] = []
    play(residency_of(tmp_path, first), measure)

    async def act(residency: Residency) -> None:
        together = await asyncio.gather(*(answer(residency, id, ask("hi", id, max_tokens=12)) for id in ("one", "two")))
        assert [len(tokens) for tokens in together] == [12, 12]
        assert loaded(residency) == {"one", "two"}
        alone = await answer(residency, "one", ask("hi", "again", max_tokens=12))
        assert alone == together[0]
        assert len(await answer(residency, third, ask("hi", "third", max_tokens=4))) == 4
        assert loaded(residency) == {"one", third}, "the one that had been idle longest has left"
        assert await answer(residency, "two", ask("hi", "back", max_tokens=12)) == together[1]
        assert residency.occupancy.ledger.outstanding_bytes == 0

    floors = dict.fromkeys(("one", "two", third), FLOOR_BYTES)
    limit = 5 * sizes[0] // 2 + FLOOR_BYTES + 64 * MIB
    play(residency_of(tmp_path, first, second, third, limit_bytes=limit, floors=floors), act)


def test_memory_returns_to_where_it_was_after_many_loads(tmp_path: Path) -> None:
    """The workers' memory ends with their processes; what could grow is the parent."""
    models = [tiny(tmp_path, "one"), tiny(tmp_path, "two")]

    async def act(residency: Residency) -> None:
        me = psutil.Process()

        async def cycle(number: int) -> None:
            for id in ("one", "two"):
                assert len(await answer(residency, id, ask("hi", f"{number}-{id}", max_tokens=2))) == 2
            for id in ("one", "two"):
                await residency.unload(id)
            assert loaded(residency) == set()
            assert residency.occupancy.granted == {}

        for number in range(WARM_UP):
            await cycle(number)
        children, handles, resident = len(me.children()), me.num_fds(), me.memory_info().rss
        for number in range(WARM_UP, WARM_UP + CYCLES):
            await cycle(number)
        assert (len(me.children()), me.num_fds()) == (children, handles)
        assert me.memory_info().rss <= resident + SLACK_BYTES

    play(residency_of(tmp_path, *models), act, timeout_s=1200)


def test_a_model_that_can_never_fit_is_refused_and_nobody_leaves_for_it(tmp_path: Path) -> None:
    small, large = tiny(tmp_path, "small"), tiny(tmp_path, "large")
    (large / "model.safetensors.index.json").unlink()  # without it every weight file counts
    write_hole(large / "more.safetensors", 6 * GIB)

    async def act(residency: Residency) -> None:
        await answer(residency, "small", ask("hi", "1", max_tokens=2))
        pid = residency.model("small").pid
        with pytest.raises(RequestFailed) as refused:
            await answer(residency, "large", ask("hi", "2", max_tokens=2))
        failure = refused.value.failure
        assert (failure.status, failure.code) == (503, "memory_cap")
        assert failure.detail["reason"] in (
            "memory_limit",
            "machine_too_small",
        )  # the latter where the test runs on less
        assert failure.detail["required_bytes"] > 6 * GIB
        assert {"usable_bytes", "largest_loadable_bytes"} <= failure.detail.keys()
        with pytest.raises(RequestFailed):
            await residency.pre_accept("large")
        assert residency.model("small").pid == pid
        assert len(await answer(residency, "small", ask("hi", "3", max_tokens=2))) == 2

    play(residency_of(tmp_path, small, large, limit_bytes=4 * GIB), act)


def test_measured_memory_stays_under_a_tight_cap_while_many_chat(tmp_path: Path) -> None:
    """Soak: a model of about 300 MB, 32 chats, two minutes. Else much less of it all."""
    width, layers, chats, seconds = (1024, 8, 32, 120.0) if SOAK else (384, 4, 8, 3.0)
    path = write_family(
        tmp_path / "wide", "llama",
        hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, head_dim=width // 16,
        num_attention_heads=16, num_key_value_heads=8, vocab_size=4096,
    )  # fmt: skip
    floors = {"wide": 384 * MIB if SOAK else 96 * MIB}

    async def measure(residency: Residency) -> None:
        await residency.load("wide")
        one = residency.occupancy.residents[0]
        sizes.append(one.slot.weight_bytes + one.member.minimum_bytes)

    sizes: list[int] = []
    play(residency_of(tmp_path, path, floors=floors, context_length=512), measure)
    limit = sizes[0] + floors["wide"] + 48 * MIB

    async def act(residency: Residency) -> None:
        await residency.load("wide")
        worker = psutil.Process(residency.model("wide").pid)
        watch = asyncio.create_task(peak_of(worker))
        refused = list[int]()
        ends = await asyncio.gather(*(chat(residency, number, seconds, refused) for number in range(chats)))
        watch.cancel()
        assert sum(ends) > 0
        assert set(refused) <= {429, 503}
        assert worker.is_running()
        assert residency.model("wide").totals.restarts == 0
        assert max(peaks) <= residency.occupancy.bounds.cap_bytes

    peaks: list[int] = []

    async def peak_of(worker: psutil.Process) -> None:
        while True:
            peaks.append(worker.memory_info().rss)
            await asyncio.sleep(0.02)

    play(residency_of(tmp_path, path, limit_bytes=limit, floors=floors, context_length=512), act, seconds + 300)


async def chat(residency: Residency, number: int, seconds: float, refused: list[int]) -> int:
    """Asks again and again; how often it was answered, and the statuses with which it was not."""
    rng, loop = Random(number), asyncio.get_running_loop()
    ends, deadline, turn = 0, loop.time() + seconds, 0
    while loop.time() < deadline:
        turn += 1
        request = ask("word " * rng.randint(1, 40), f"{number}-{turn}", max_tokens=rng.randint(4, 48))
        try:
            async for event in residency.generate("wide", request):
                ends += isinstance(event, Finished)
        except RequestFailed as failed:
            refused.append(failed.failure.status)
            await asyncio.sleep(0.1)
    return ends
