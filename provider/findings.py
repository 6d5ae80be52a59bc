"""What doctor says: one finding for each thing it looked at. Whatever is no pass says how to fix it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` says what to do, and is None for a pass."""

    name: str
    status: Status
    message: str
    fix: str | None = None


def is_failure(findings: Iterable[Finding], strict: bool) -> bool:
    bad = {Status.FAIL, Status.WARN} if strict else {Status.FAIL}
    return any(finding.status in bad for finding in findings)
