"""Who else uses this machine's memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import psutil

NOTABLE_BYTES = 2**28
MAX_PROGRAMS = 5


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    pid: int
    resident_bytes: int


def largest_programs(without: Iterable[int] = (), notable_bytes: int = NOTABLE_BYTES) -> list[Program]:
    """The largest few by resident memory, this process, `without` and all their children left out."""
    ours = {psutil.Process().pid, *without, *(child for pid in without for child in _children(pid))}
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        memory = process.info["memory_info"]
        if process.info["pid"] not in ours and memory is not None and memory.rss >= notable_bytes:
            found.append(Program(process.info["name"] or "?", process.info["pid"], memory.rss))
    return sorted(found, key=lambda one: -one.resident_bytes)[:MAX_PROGRAMS]


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
