"""What doctor says of memory beside whether a model fits: why it may not, and why little of it looks free."""

from collections.abc import Sequence
from dataclasses import dataclass

from provider.findings import Finding, Status
from provider.fit_findings import fit_findings
from provider.fitness import FitReport, MachineFacts
from provider.fleet_findings import judge_links
from provider.memory.caps import GIB
from provider.memory.fit import Fit
from provider.models.commands import readable_bytes
from provider.programs import Program
from provider.running import FailedSlot, LoadError, Running
from provider.system_memory import MemoryKind, Pressure, SystemMemory

USEFUL_BYTES = 8 * GIB
"""A machine with less serves nothing but the smallest models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """`cap_bytes` None where the size of the memory is. `machines`: this machine with each model in question as its
    target. `now_s`: seconds since 1970."""

    memory: SystemMemory
    kind: MemoryKind
    cap_bytes: int | None
    machines: tuple[MachineFacts, ...] = ()
    programs: tuple[Program, ...] = ()
    running: Running | None = None
    now_s: float = 0.0


def judge_memory(facts: MemoryFacts, reports: Sequence[FitReport]) -> list[Finding]:
    """`reports`: of `facts.machines`."""
    short = any(report.verdict is not Fit.PASS for report in reports)
    maybe = (
        judge_pressure(facts.memory.pressure),
        judge_file_cache(facts.memory),
        judge_programs(facts.programs) if short else None,
    )
    return [
        judge_machine(facts.memory, facts.kind, facts.cap_bytes),
        *(fit_findings(reports, facts.machines[0]) if reports else ()),
        *filter(None, maybe),
        *judge_running(facts.running, facts.now_s),
    ]


def judge_machine(memory: SystemMemory, kind: MemoryKind, cap_bytes: int | None) -> Finding:
    name, physical = "memory", memory.physical_bytes
    if physical is None or cap_bytes is None:
        fix = "Nothing needs doing; serving then relies on what MLX measures."
        return Finding(name, Status.WARN, "The size of the memory for models cannot be read.", fix)
    free = "an unknown amount" if memory.available_bytes is None else readable_bytes(memory.available_bytes)
    said = f"{readable_bytes(physical)} {kind}, {readable_bytes(cap_bytes)} for models, {free} available now"
    if physical < USEFUL_BYTES:
        fix = "Serve on a machine with 8 GiB or more; the bundled model runs here all the same."
        return Finding(name, Status.WARN, f"{said}: little for a language model.", fix)
    return Finding(name, Status.PASS, f"{said}.")


def judge_pressure(pressure: Pressure | None) -> Finding | None:
    """Nothing is said of a system that is not pressed, or does not tell."""
    if pressure is None or pressure is Pressure.NORMAL:
        return None
    message = f"The operating system reports {pressure} memory pressure: programs wait for memory."
    return Finding("memory pressure", Status.WARN, message, "Close programs, or serve a smaller model.")


def judge_file_cache(memory: SystemMemory) -> Finding | None:
    """Explains a machine that looks full: most of what can be had holds copies of files."""
    cache, available = memory.file_cache_bytes, memory.available_bytes
    if cache is None or available is None or 2 * cache < available:
        return None
    message = (
        f"{readable_bytes(cache)} of the {readable_bytes(available)} available hold copies of files and are given back "
        "when somebody asks: they count as available, and hashing weights does not make a model too large."
    )
    return Finding("file cache", Status.PASS, message)


def judge_programs(programs: Sequence[Program]) -> Finding | None:
    """For a machine on which something does not fit."""
    if not programs:
        return None
    named = ", ".join(f"{one.name} (pid {one.pid}, {readable_bytes(one.resident_bytes)})" for one in programs)
    message = f"The largest other programs here: {named}."
    return Finding("other programs", Status.WARN, message, "Close those that are not needed.")


def judge_running(running: Running | None, now_s: float) -> list[Finding]:
    """Nothing is said where no provider runs."""
    if running is None:
        return []
    if not running.fresh:
        message = f"The provider (pid {running.pid}) has said nothing of itself for {running.age_s:.0f} s."
        fix = "Look at its log; restart it if it hangs. Memory is judged here as if it were not running."
        return [Finding("provider state", Status.WARN, message, fix)]
    found = [] if running.load_error is None else [_judge_load_error(running.load_error, now_s)]
    return [*found, *map(_judge_failed, running.failed), *judge_links(running.links)]


def _judge_failed(slot: FailedSlot) -> Finding:
    message = f"{slot.model} is not running: {slot.reason.rstrip('.')}."
    if slot.retry_in_s is None:
        return Finding("worker", Status.FAIL, message, "The provider's log says more; restart it once that is mended.")
    fix = f"It is tried again by itself in {slot.retry_in_s:.0f} s; the provider's log says how each worker ended."
    return Finding("worker", Status.WARN, message, fix)


def _judge_load_error(error: LoadError, now_s: float) -> Finding:
    when = "" if error.at is None else f" ({_ago(now_s - error.at)})"
    message = f"The last load that failed{when} was of {error.model}: {error.message}"
    return Finding("last load", Status.WARN, message, f"See whether {error.model} fits, above; the log says more.")


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 5400 else f"{seconds / 3600:.0f} h ago"
