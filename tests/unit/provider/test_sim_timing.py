"""The simulated device's time: what a step takes, who waits for it, and that nobody does unless a device is named."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.backends.base import BackendFacts, Row
from provider.backends.sim import SimBackend
from provider.backends.sim_timing import (
    DEVICE_VARIABLE,
    DEVICES,
    Device,
    LeadingClock,
    decode_s,
    device_named_in,
    prefill_s,
)
from provider.engine import Engine
from provider.errors import ConfigError
from provider.generation import Finished, GenerationRequest, Sampling
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.pipe import LoadSpec, Report, Submit
from provider.runner import InlineRunner
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler

FACTS = BackendFacts("sim", 64, 4096, weight_bytes=1000, kv_bytes_per_token=2, state_bytes=10, block_tokens=16)
SLOW_MEMORY = Device("slow memory", bandwidth_bytes_per_s=100, flops_per_s=1e12, overhead_s=0.5)
SLOW_UNITS = Device("slow units", bandwidth_bytes_per_s=1e12, flops_per_s=100, overhead_s=0.5)
REAL = BackendFacts("sim", 248_320, 262_144, 8_000_000_000, 24_576, 25_000_000, 256)
"""About the size of a 4-billion-parameter hybrid in bfloat16."""

GREEDY = Sampling(temperature=0)
lengths = st.lists(st.integers(1, 200_000), min_size=1, max_size=64)
devices = st.sampled_from(list(DEVICES.values()))


class FakeClock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.mark.parametrize(
    ("device", "rows", "expected_s"),
    [
        (SLOW_MEMORY, [1], (1000 + 2 + 20) / 100 + 0.5),
        (SLOW_MEMORY, [5, 10], (1000 + 30 + 40) / 100 + 0.5),
        (SLOW_UNITS, [1], (1000 + 16) / 100 + 0.5),
        (SLOW_UNITS, [5, 10], (2000 + 240) / 100 + 0.5),
    ],
)
def test_a_decode_step_takes_what_its_slower_half_takes(device: Device, rows: list[int], expected_s: float) -> None:
    assert decode_s(device, FACTS, rows) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("device", "held", "count", "expected_s"),
    [
        (SLOW_MEMORY, 0, 4, (1000 + 8 + 20) / 100 + 0.5),
        (SLOW_MEMORY, 16, 4, (1000 + 40 + 20) / 100 + 0.5),
        (SLOW_UNITS, 0, 4, (4000 + 10 * 16) / 100 + 0.5),
        (SLOW_UNITS, 16, 4, (4000 + (64 + 10) * 16) / 100 + 0.5),
    ],
)
def test_a_prefill_attends_to_all_before_it(device: Device, held: int, count: int, expected_s: float) -> None:
    assert prefill_s(device, FACTS, held, count) == pytest.approx(expected_s)


@settings(deadline=None)
@given(device=devices, rows=lengths)
def test_a_batch_is_never_slower_than_its_rows_in_turn(device: Device, rows: list[int]) -> None:
    assert decode_s(device, REAL, rows) <= sum(decode_s(device, REAL, [row]) for row in rows) * (1 + 1e-9)


@settings(deadline=None)
@given(device=devices, rows=lengths)
def test_more_rows_and_longer_rows_never_take_less(device: Device, rows: list[int]) -> None:
    alone = decode_s(device, REAL, rows)
    assert alone <= decode_s(device, REAL, [*rows, 1])
    assert alone <= decode_s(device, REAL, [row + 1 for row in rows])


@settings(deadline=None)
@given(device=devices, held=st.integers(0, 100_000), one=st.integers(1, 4096), other=st.integers(1, 4096))
def test_cutting_a_prefill_never_makes_it_faster(device: Device, held: int, one: int, other: int) -> None:
    whole = prefill_s(device, REAL, held, one + other)
    assert whole <= (prefill_s(device, REAL, held, one) + prefill_s(device, REAL, held + one, other)) * (1 + 1e-9)


def test_the_devices_rank_as_their_data_sheets_do() -> None:
    steps = [decode_s(DEVICES[name], REAL, [1000] * 8) for name in ("h100", "m3-max", "slow-cpu")]
    assert steps == sorted(steps)
    assert 0.02 < steps[1] < 0.03, "8 GB at 400 GB/s"


@pytest.mark.parametrize(
    ("env", "name"), [({}, None), ({DEVICE_VARIABLE: ""}, None), ({DEVICE_VARIABLE: "h100"}, "h100")]
)
def test_the_device_is_named_by_the_environment(env: dict[str, str], name: str | None) -> None:
    assert device_named_in(env) == (None if name is None else DEVICES[name])


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"DARKBLOOM_SIM_DEVICE must be one of m3-max, h100, slow-cpu, instant, paced, not 'abacus'"
    ):
        device_named_in({DEVICE_VARIABLE: "abacus"})


def test_the_backend_passes_exactly_the_devices_time() -> None:
    clock = FakeClock()
    backend = SimBackend(FACTS, SLOW_MEMORY, clock)
    backend.open("a", GREEDY, [1, 2, 3])
    first = backend.prefill("a", [1, 2, 3], 0)
    assert clock.at == pytest.approx(prefill_s(SLOW_MEMORY, FACTS, 0, 3))
    before = clock.at
    backend.decode([Row("a", first or 0, 1)])
    assert clock.at - before == pytest.approx(decode_s(SLOW_MEMORY, FACTS, [4]))


def test_a_device_changes_the_time_and_not_the_tokens() -> None:
    clock = FakeClock()
    paced, unpaced = SimBackend(FACTS, SLOW_MEMORY, clock), SimBackend(FACTS)
    assert run(paced, [[1, 2, 3], [4] * 40]) == run(unpaced, [[1, 2, 3], [4] * 40])
    assert clock.at > 0


def test_the_same_load_takes_the_same_time() -> None:
    ends = []
    for _ in range(2):
        clock = FakeClock()
        run(SimBackend(REAL, DEVICES["m3-max"], clock), [[n] * (50 + n) for n in range(8)])
        ends.append(clock.at)
    assert ends[0] == ends[1] > 0


def run(backend: SimBackend, prompts: list[list[int]]) -> dict[str, list[int]]:
    """The prompts through an engine; their tokens."""
    engine = Engine(Scheduler(Limits(8, 4096), Pool(100_000)), backend, lambda ids, skip: "x" * len(ids))
    for number, prompt in enumerate(prompts):
        engine.submit(GenerationRequest(request_id=str(number), prompt=prompt, max_tokens=10, sampling=GREEDY))
    tokens: dict[str, list[int]] = {}
    while engine.busy:
        events: list[Any] = []
        events += engine.step(events.extend).events
        for event in events:
            tokens.setdefault(event.request_id, []).extend(getattr(event, "token_ids", []))
    return tokens


def test_the_peak_is_kept_also_when_nobody_looked_at_it() -> None:
    backend = SimBackend(FACTS)
    backend.open("a", GREEDY, [])
    backend.prefill("a", [1] * 17, None)
    backend.release("a")
    assert backend.memory().active_bytes == 1000
    assert backend.memory().peak_bytes == 1000 + 10 + 2 * 16 * 2


def test_a_leading_clock_owes_what_was_slept() -> None:
    clock = LeadingClock()
    before = clock.now()
    clock.sleep(1000)
    clock.sleep(500)
    assert clock.now() - before >= 1500
    assert clock.settle() == 1500
    assert clock.settle() == 0


def test_a_simulated_device_in_this_process_delays_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE_VARIABLE, "m3-max")
    reports, breaths = asyncio.run(beside_an_inline_engine(BUNDLED_MODEL_DIR))
    ends = [event for report in reports for event in report.events if isinstance(event, Finished)]
    assert [end.completion_tokens for end in ends] == [5]
    steps = [report.step_s for report in reports if report.decoded or report.prefilled]
    assert all(step >= DEVICES["m3-max"].overhead_s for step in steps)
    assert breaths > len(steps)


async def beside_an_inline_engine(directory: Path) -> tuple[list[Report], int]:
    """One request, and how often another task ran while it was answered."""
    reports: list[Report] = []
    done = asyncio.Event()

    def heard(report: Report) -> None:
        reports.append(report)
        if any(isinstance(event, Finished) for event in report.events):
            done.set()

    runner, breaths = InlineRunner(), 0
    await runner.start(LoadSpec(backend="sim", directory=str(directory), max_concurrent=8), heard)
    runner.send(Submit(GenerationRequest(request_id="a", prompt=[1, 2, 3], max_tokens=5, sampling=GREEDY)))
    while not done.is_set():
        breaths += 1
        await asyncio.sleep(0)
    await runner.stop()
    return reports, breaths
