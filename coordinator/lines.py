"""The lines of a journal: records as JSON."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coordinator.store.records import Record, Sighting, Touch, Usage


@dataclass(frozen=True, slots=True)
class Draft:
    """A job that has not ended: what is billed should no more be heard of it."""

    usage: Usage


Line = Record | Draft

_KINDS: dict[str, TypeAdapter[Any]] = {
    "usage": TypeAdapter(Usage),
    "draft": TypeAdapter(Usage),
    "sighting": TypeAdapter(Sighting),
    "touch": TypeAdapter(Touch),
}


class NoLine(ValueError):
    """Torn, damaged, or of another version."""


def encoded(line: Line) -> bytes:
    kind, record = _kind(line)
    return b'{"kind":"%s","record":%s}\n' % (kind.encode(), _KINDS[kind].dump_json(record))


def decoded(raw: bytes) -> Line:
    """Raises NoLine."""
    try:
        value = json.loads(raw)
        record: Record = _KINDS[value["kind"]].validate_python(value["record"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise NoLine(" ".join(str(error).split())) from None
    return Draft(record) if value["kind"] == "draft" and isinstance(record, Usage) else record


def _kind(line: Line) -> tuple[str, Record]:
    match line:
        case Draft(usage):
            return "draft", usage
        case Usage():
            return "usage", line
        case Sighting():
            return "sighting", line
        case Touch():
            return "touch", line
