"""A report on whether models fit, in words: what is needed, what there is, and what to do about it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, assert_never

from provider.findings import Finding, Status
from provider.fitness import FitReport, MachineFacts
from provider.memory.caps import hard_cap
from provider.memory.fit import Fit
from provider.models.commands import readable_bytes

FIT_CHECK = "model fits in memory"
MAX_NAMED = 3


def fit_findings(reports: Sequence[FitReport], facts: MachineFacts) -> list[Finding]:
    """One for each model; one for all those that this machine is too small for."""
    never = [one for one in reports if one.verdict is Fit.FAIL and not one.ever]
    said = [_finding(one, facts) for one in reports if one not in never]
    return said if not never else [*said, _too_small(never, facts)]


def fit_object(report: FitReport) -> dict[str, Any]:
    """As `doctor --json` answers it."""
    return {
        "target": report.target,
        "required_bytes": report.required_bytes,
        "usable_bytes": report.usable_bytes,
        "ceiling_bytes": report.ceiling_bytes,
        "activation_reserve_bytes": report.activation_reserve_bytes,
        "effective_cap_bytes": report.effective_cap_bytes,
        "verdict": report.verdict.value,
        "alternatives": [asdict(one) for one in report.alternatives],
    }


def _finding(report: FitReport, facts: MachineFacts) -> Finding:
    needs = f"{report.target} needs {readable_bytes(report.required_bytes)}"
    usable = f"{readable_bytes(report.usable_bytes)} usable"
    match report.verdict:
        case Fit.PASS:
            return Finding(FIT_CHECK, Status.PASS, f"{needs}; {usable}.")
        case Fit.WARN:
            more = f"and {readable_bytes(report.ceiling_bytes)} once what is idle has been evicted"
            fix = "Nothing needs doing: a request for it evicts idle models."
            if facts.resident:
                fix += f" Unload them ({', '.join(sorted(facts.resident))}) to have it load at once."
            return Finding(FIT_CHECK, Status.WARN, f"{needs}; {usable} now, {more}.", fix)
        case Fit.FAIL:
            most = f"{readable_bytes(report.ceiling_bytes)} can be had, with everything idle evicted"
            message = f"{needs}, and no more than {most}: a request for it would fail to load."
            return Finding(FIT_CHECK, Status.FAIL, message, _remedy(report, facts))
        case _:
            assert_never(report.verdict)


def _too_small(reports: Sequence[FitReport], facts: MachineFacts) -> Finding:
    needed = ", ".join(f"{one.target} (needs {readable_bytes(one.required_bytes)})" for one in reports)
    first = reports[0]
    if _is_limited(first, facts):
        said = f"memory_limit_gb allows models {readable_bytes(first.effective_cap_bytes)}, too little for {needed}."
        return Finding(FIT_CHECK, Status.FAIL, said, _remedy(first, facts))
    most = f"models may take {readable_bytes(first.effective_cap_bytes)} of {readable_bytes(facts.physical_bytes)}"
    return Finding(FIT_CHECK, Status.FAIL, f"RAM is too small for {needed}: {most}.", _remedy(first, facts))


def _remedy(report: FitReport, facts: MachineFacts) -> str:
    """The ways out, the nearest first."""
    ways = []
    bound = report.ceiling_bytes if report.ever else report.effective_cap_bytes
    if report.ever:
        ways.append(f"close other programs to free {readable_bytes(report.required_bytes - report.ceiling_bytes)} more")
    if report.alone_bytes is not None and report.alone_bytes <= bound:
        ways.append(f"serve {report.target} alone, when it needs {readable_bytes(report.alone_bytes)}")
    if _is_limited(report, facts):
        ways.append("raise memory_limit_gb in provider.toml")
    elif not report.ever and report.required_bytes <= hard_cap(facts.physical_bytes, facts.cap_fraction):
        ways.append("lower memory_reserve_gb in provider.toml")
    ways.append(_others(report))
    text = ", or ".join(ways)
    return f"{text[0].upper()}{text[1:]}."


def _is_limited(report: FitReport, facts: MachineFacts) -> bool:
    """Whether it is the operator's limit, and not the machine, that is too small."""
    return not report.ever and facts.machine_cap_bytes is not None and report.required_bytes <= facts.machine_cap_bytes


def _others(report: FitReport) -> str:
    """The largest models that would fit; without any, how large one may be."""
    if report.alternatives:
        named = [f"{one.id} (needs {readable_bytes(one.required_bytes)})" for one in report.alternatives[:MAX_NAMED]]
        return f"serve one that fits: {', '.join(named)}"
    if report.largest_size_bytes:
        return f"serve a model with at most {readable_bytes(report.largest_size_bytes)} of weights"
    return "serve a model on a larger machine: with this reserve there is no room for any now"
