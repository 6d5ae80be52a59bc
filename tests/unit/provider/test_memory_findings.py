"""What doctor says of memory beside the verdict."""

from dataclasses import replace

import psutil
import pytest

from provider.findings import Finding, Status
from provider.fitness import Candidate, MachineFacts, judge_fit
from provider.memory.caps import GIB
from provider.memory_findings import (
    MemoryFacts,
    judge_file_cache,
    judge_machine,
    judge_memory,
    judge_pressure,
    judge_running,
)
from provider.programs import Program, largest_programs
from provider.running import LoadError, Running
from provider.system_memory import Pressure, SystemMemory

MEMORY = SystemMemory(
    physical_bytes=32 * GIB, available_bytes=20 * GIB, pressure=Pressure.NORMAL, read_at_s=0.0, file_cache_bytes=GIB
)
MODEL = Candidate(id="m", size_bytes=10 * GIB)
FITTING = MachineFacts(
    physical_bytes=32 * GIB,
    available_bytes=24 * GIB,
    reserve_bytes=4 * GIB,
    advertised=None,
    models=(MODEL,),
    target="m",
)
HUNGRY = Program("browser", 42, 9 * GIB)
RUNNING = Running(pid=7, age_s=1.0, advertised=("m",))


def names(facts: MemoryFacts) -> list[str]:
    return [one.name for one in judge_memory(facts, [judge_fit(one) for one in facts.machines])]


def facts(
    machine: MachineFacts = FITTING, memory: SystemMemory = MEMORY, running: Running | None = None
) -> MemoryFacts:
    return MemoryFacts(
        memory=memory,
        kind="unified",
        cap_bytes=28 * GIB,
        machines=(machine,),
        programs=(HUNGRY,),
        running=running,
        now_s=1000.0,
    )


def test_a_machine_in_order_is_told_of_in_two_lines() -> None:
    assert names(facts()) == ["memory", "model fits in memory"]


def test_the_programs_in_the_way_are_named_only_when_something_does_not_fit() -> None:
    found = judge_memory(
        facts(replace(FITTING, available_bytes=GIB)), [judge_fit(replace(FITTING, available_bytes=GIB))]
    )
    (programs,) = [one for one in found if one.name == "other programs"]

    assert "browser (pid 42, 9.00 GiB)" in programs.message
    assert programs.status is Status.WARN


def test_the_size_of_the_memory_is_said() -> None:
    found = judge_machine(MEMORY, "unified", 28 * GIB)

    assert found == Finding("memory", Status.PASS, "32.00 GiB unified, 28.00 GiB for models, 20.00 GiB available now.")


@pytest.mark.parametrize(
    ("memory", "cap", "said"),
    [
        (replace(MEMORY, physical_bytes=6 * GIB), 2 * GIB, "little for a language model"),
        (replace(MEMORY, physical_bytes=None), None, "cannot be read"),
    ],
)
def test_too_small_a_machine_and_an_unreadable_one_are_warned_of(
    memory: SystemMemory, cap: int | None, said: str
) -> None:
    found = judge_machine(memory, "host", cap)

    assert found.status is Status.WARN
    assert said in found.message
    assert found.fix


def test_unknown_available_memory_is_said_to_be_unknown() -> None:
    assert "an unknown amount available" in judge_machine(replace(MEMORY, available_bytes=None), "host", GIB).message


@pytest.mark.parametrize("pressure", [None, Pressure.NORMAL])
def test_nothing_is_said_of_a_system_at_ease(pressure: Pressure | None) -> None:
    assert judge_pressure(pressure) is None


@pytest.mark.parametrize("pressure", [Pressure.WARNING, Pressure.CRITICAL])
def test_a_pressed_system_is_a_warning(pressure: Pressure) -> None:
    found = judge_pressure(pressure)

    assert found is not None
    assert (found.status, f"{pressure.value} memory pressure" in found.message) == (Status.WARN, True)


@pytest.mark.parametrize(("cache", "explained"), [(None, False), (GIB, False), (10 * GIB, True), (19 * GIB, True)])
def test_a_large_file_cache_is_explained_and_no_fault(cache: int | None, explained: bool) -> None:
    found = judge_file_cache(replace(MEMORY, file_cache_bytes=cache))

    assert (found is not None) is explained
    assert found is None or found.status is Status.PASS
    assert judge_file_cache(replace(MEMORY, file_cache_bytes=cache, available_bytes=None)) is None


def test_no_provider_means_no_word_of_one() -> None:
    assert judge_running(None, 0.0) == []
    assert judge_running(RUNNING, 0.0) == []


def test_a_silent_provider_is_a_warning_and_nothing_else_of_it_is_told() -> None:
    silent = replace(RUNNING, age_s=600.0, load_error=LoadError("m", "x", None))
    (found,) = judge_running(silent, 0.0)

    assert (found.name, found.status) == ("provider state", Status.WARN)
    assert "600 s" in found.message


@pytest.mark.parametrize(
    ("at", "when"),
    [(995.0, " (5 s ago)"), (1500.0, " (0 s ago)"), (400.0, " (10 min ago)"), (-9000.0, " (3 h ago)"), (None, "")],
)
def test_the_last_load_that_failed_is_told(at: float | None, when: str) -> None:
    (found,) = judge_running(replace(RUNNING, load_error=LoadError("m", "m needs 9 GiB", at)), 1000.0)

    assert (found.name, found.status) == ("last load", Status.WARN)
    assert found.message == f"The last load that failed{when} was of m: m needs 9 GiB"


def test_neither_this_process_nor_the_provider_and_its_children_are_other_programs() -> None:
    me = psutil.Process()
    others = largest_programs(notable_bytes=0)

    assert others
    assert me.pid not in {one.pid for one in others}
    assert [one.resident_bytes for one in others] == sorted((one.resident_bytes for one in others), reverse=True)
    first = others[0].pid
    assert first not in {one.pid for one in largest_programs(without=[first], notable_bytes=0)}
